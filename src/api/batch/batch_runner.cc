// SPDX-License-Identifier: Apache-2.0
#include "api/batch/batch_runner.h"

#include "api/batch/batch_job.h"
#include "api/core/generate_params.h"
#include "api/files/disk.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

namespace inferd::api {
namespace {

constexpr auto kBusyWait = std::chrono::milliseconds(50);
constexpr auto kNoWait = std::chrono::milliseconds(0);
constexpr auto kIdleWait = std::chrono::milliseconds(1000);
constexpr std::int64_t kDiskPauseMs = 5000;
constexpr std::int64_t kHousekeepMs = 10'000;
constexpr std::size_t kReadBytes = 1U << 20;  // of an input at a time

std::int64_t NowMs() { return base::SteadyClock::Get().NowMs(); }

std::string_view TextOf(const base::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()),
          static_cast<std::size_t>(file.size())};
}

}  // namespace

/// A batch whose input is being read.
struct BatchRunner::Opening {
  Opening(BatchRecord batch, base::MappedFile file, const BatchInputLimits& limits)
      : record(std::move(batch)),
        text(std::move(file)),
        reader(TextOf(text), record.endpoint, limits) {}

  const BatchRecord record;
  base::MappedFile text;
  BatchInputReader reader;  // of the text
};

struct BatchRunner::Active {
  std::string id;
  std::string owner;
  std::int64_t expires_at = 0;
  std::unique_ptr<BatchJob> job;
  bool ending = false;             // no more lines; what ran is cancelled
  std::int64_t disk_pause_ms = 0;  // its end has failed: tried again then
};

BatchRunner::BatchRunner(BatchOptions options,
                         BatchStore* store,
                         FileStore* files,
                         Metrics* metrics)
    : options_(std::move(options)), store_(store), files_(files), metrics_(metrics) {}

BatchRunner::~BatchRunner() { Stop(); }

std::int64_t BatchRunner::now_s() const {
  return options_.now_s != nullptr ? options_.now_s() : UnixNow();
}

// ---- any thread

void BatchRunner::Start(std::unique_ptr<LineRunner> lines) {
  lines_ = std::move(lines);
  for (const BatchRecord& record : store_->Unfinished()) {
    // A missing file is told when the batch is taken up.
    [[maybe_unused]] const auto held = files_->Hold(record.owner, record.input_file_id, record.id);
  }
  thread_ = std::thread([this] {
    try {
      Run();
    } catch (const std::exception& error) {  // only a bug or an exhausted heap gets here
      base::CheckFailed("batch runner", error.what());
    }
  });
}

void BatchRunner::BeginDrain() { draining_.store(true); }

void BatchRunner::Stop() {
  stop_.store(true);
  if (thread_.joinable()) {
    lines_->Wake();
    thread_.join();
  }
  if (lines_ != nullptr) {
    lines_->Stop();
  }
}

Result<BatchRecord> BatchRunner::Create(BatchRecord record) {
  record.id = NewId("batch_");
  record.output_file_id = NewId("file-");
  record.error_file_id = NewId("file-");
  record.created_at = now_s();
  record.expires_at = record.created_at + options_.window_s;
  INFERD_TRY(files_->Hold(record.owner, record.input_file_id, record.id));
  const std::string file = record.input_file_id;
  const std::string id = record.id;
  auto added = store_->Add(std::move(record));
  if (!added.ok()) {
    files_->Release(file, id);
    return added.error();
  }
  changed_.store(true);
  lines_->Wake();
  return added;
}

Result<BatchRecord> BatchRunner::Cancel(std::string_view owner, std::string_view id) {
  INFERD_ASSIGN(const BatchRecord found, store_->Find(owner, id));
  auto changed = store_->Change(found.id, [this](BatchRecord* record) -> Result<> {
    if (IsOver(record->state) || record->state == BatchState::kFinalizing) {
      return FailedPrecondition("A batch that is {} cannot be cancelled", NameOf(record->state));
    }
    if (record->state != BatchState::kCancelling) {
      record->state = BatchState::kCancelling;
      record->ending = BatchState::kCancelled;
      record->cancelling_at = now_s();
    }
    return {};
  });
  changed_.store(true);
  lines_->Wake();
  return changed;
}

// ---- the thread

void BatchRunner::Run() {
  while (!stop_.load()) {
    auto answer = lines_->Take(opening_ != nullptr ? kNoWait
                               : active_.empty()   ? kIdleWait
                                                   : kBusyWait);
    for (; answer && !stop_.load(); answer = lines_->Take(std::chrono::milliseconds(0))) {
      OnAnswer(*std::move(answer));
    }
    if (stop_.load()) {
      return;
    }
    if (!draining_.load()) {
      TakeUp();
    }
    ReadOn();
    EndWhatIsOver();
    Dispatch();
    Housekeep();
  }
}

/// Begins batches that wait: the oldest of each owner that has none running, and those that only
/// have to be ended.
void BatchRunner::TakeUp() {
  if (opening_ != nullptr || !changed_.exchange(false)) {
    return;
  }
  for (const BatchRecord& record : store_->Unfinished()) {
    const bool ends = record.state == BatchState::kCancelling ||
                      record.state == BatchState::kFinalizing || now_s() >= record.expires_at;
    const bool waits =
        std::none_of(active_.begin(), active_.end(), [&](const std::unique_ptr<Active>& one) {
          return one->id == record.id || (one->owner == record.owner && !ends);
        });
    if (waits && !stop_.load()) {
      Begin(record);
    }
    if (opening_ != nullptr) {  // one at a time; the next ones are looked for after it
      return changed_.store(true);
    }
  }
}

void BatchRunner::Begin(const BatchRecord& record) {
  auto file = files_->Find(record.owner, record.input_file_id);
  if (!file.ok()) {
    return Fail(record.id, {{"file_not_found", file.error().message(), "input_file_id", 0}});
  }
  auto text = base::MappedFile::Open(files_->DataPath(file->id));
  if (!text.ok()) {
    return FailUnread(record.id, text.error());
  }
  opening_ = std::make_unique<Opening>(record, *std::move(text), options_.input);
}

/// Some of the input: between the parts other batches go on.
void BatchRunner::ReadOn() {
  if (opening_ == nullptr || !opening_->reader.ReadOn(kReadBytes)) {
    return;
  }
  const std::unique_ptr<Opening> read = std::move(opening_);
  BatchInput input = read->reader.Take();
  if (!input.errors.empty()) {
    return Fail(read->record.id, std::move(input.errors));
  }
  if (auto opened = Open(read->record, std::move(input), std::move(read->text)); !opened.ok()) {
    FailUnread(read->record.id, opened.error());
  }
}

void BatchRunner::FailUnread(const std::string& id, const Error& error) {
  log::Failure("api", "{}: {}", id, error.message());
  Fail(id, {{"server_error", "The server could not read or keep this batch", "", 0}});
}

Result<> BatchRunner::Open(BatchRecord record, BatchInput input, base::MappedFile text) {
  auto active = std::make_unique<Active>();
  INFERD_ASSIGN(active->job,
                BatchJob::Open(std::move(input),
                               std::move(text),
                               store_->OutputPath(record.id),
                               store_->ErrorsPath(record.id)));
  INFERD_ASSIGN(record, store_->Change(record.id, [&](BatchRecord* changed) -> Result<> {
    changed->total = static_cast<std::int64_t>(active->job->total());
    changed->completed = active->job->completed();
    changed->failed = active->job->failed();
    if (changed->state == BatchState::kValidating) {
      changed->state = BatchState::kInProgress;
      changed->in_progress_at = now_s();
    }
    return {};
  }));
  log::Info("api",
            "{}: {} of {} requests are left",
            record.id,
            active->job->left(),
            active->job->total());
  active->id = record.id;
  active->owner = record.owner;
  active->expires_at = record.expires_at;
  active_.push_back(std::move(active));
  return {};
}

void BatchRunner::Fail(const std::string& id, std::vector<BatchError> errors) {
  auto failed = store_->Change(id, [&](BatchRecord* record) -> Result<> {
    const bool cancelled = record->state == BatchState::kCancelling;
    record->state = cancelled ? BatchState::kCancelled : BatchState::kFailed;
    (cancelled ? record->cancelled_at : record->failed_at) = now_s();
    record->errors = std::move(errors);
    return {};
  });
  if (!failed.ok()) {
    log::Failure("api", "{}: {}", id, failed.error().message());
    return;
  }
  files_->Release(failed->input_file_id, id);
  changed_.store(true);
}

/// The next job with something to run, in turns.
BatchRunner::Active* BatchRunner::NextToRun(std::int64_t now_ms) {
  for (std::size_t tried = 0; tried < active_.size(); ++tried) {
    Active* const one = active_[turn_++ % active_.size()].get();
    if (!one->ending && one->job->Ready(now_ms)) {
      return one;
    }
  }
  return nullptr;
}

void BatchRunner::Dispatch() {
  while (!draining_.load() && !stop_.load()) {
    Active* const one = NextToRun(NowMs());
    if (one == nullptr || !lines_->HasRoom()) {
      return;
    }
    one->job->Start(lines_.get(), next_tag_++, one->owner);
  }
}

void BatchRunner::OnAnswer(LineAnswer answer) {
  for (const auto& one : active_) {
    BatchJob* const job = one->job.get();
    if (!job->Runs(answer.tag)) {
      continue;
    }
    const std::int64_t completed = job->completed();
    const std::int64_t failed = job->failed();
    const auto taken = job->Take(std::move(answer), NowMs());
    if (!taken.ok()) {
      log::Failure("api", "{}: {}", one->id, taken.error().message());
    } else if (job->completed() > completed) {
      metrics_->batch_lines_completed.fetch_add(1, std::memory_order_relaxed);
    } else if (job->failed() > failed) {
      metrics_->batch_lines_failed.fetch_add(1, std::memory_order_relaxed);
    } else if (!one->ending) {
      metrics_->batch_lines_retried.fetch_add(1, std::memory_order_relaxed);
    }
    store_->Count(one->id, job->completed(), job->failed());
    return;
  }
}

// ---- the end of a batch

void BatchRunner::EndWhatIsOver() {
  const std::int64_t now = now_s();
  for (std::size_t i = 0; i < active_.size();) {
    Active* const one = active_[i].get();
    const BatchRecord record = store_->Get(one->id);
    std::optional<BatchState> ending;
    if (record.state == BatchState::kCancelling) {
      ending = BatchState::kCancelled;
    } else if (record.state == BatchState::kFinalizing && record.ending == BatchState::kExpired) {
      ending = BatchState::kExpired;
    } else if (one->job->left() == 0 && one->job->running() == 0) {
      ending = BatchState::kCompleted;
    } else if (now >= one->expires_at) {
      ending = BatchState::kExpired;
    }
    if (!ending) {
      ++i;
      continue;
    }
    if (!one->ending) {
      one->ending = true;
      one->job->Cancel(lines_.get());
    }
    if (one->job->running() > 0 || one->disk_pause_ms > NowMs()) {
      ++i;
      continue;
    }
    if (auto ended = TryEnd(one, *ending); !ended.ok()) {
      log::Failure("api", "{}: {}", one->id, ended.error().message());
      one->disk_pause_ms = NowMs() + kDiskPauseMs;
      ++i;
      continue;
    }
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
    changed_.store(true);
  }
}

/// Each step may be done again after a crash.
Result<> BatchRunner::TryEnd(Active* active, BatchState ending) {
  BatchJob* const job = active->job.get();
  if (ending != BatchState::kCancelled) {
    INFERD_TRY(store_->Change(active->id, [&](BatchRecord* record) -> Result<> {
      if (record->state == BatchState::kCancelling) {
        return Aborted("it is being cancelled");
      }
      record->finalizing_at =
          record->state == BatchState::kFinalizing ? record->finalizing_at : now_s();
      record->state = BatchState::kFinalizing;
      record->ending = ending;
      return {};
    }));
  }
  if (ending == BatchState::kExpired) {
    INFERD_TRY(job->EndUnrun("batch_expired",
                             "The request was not run before the batch's window was over"));
  } else if (ending == BatchState::kCancelled) {
    INFERD_TRY(job->EndUnrun("batch_cancelled", "The batch was cancelled before the request ran"));
  }
  INFERD_TRY(job->Sync());
  const BatchRecord record = store_->Get(active->id);
  const std::string output = store_->OutputPath(record.id);
  const std::string errors = store_->ErrorsPath(record.id);
  if (job->has_output()) {
    INFERD_TRY(KeepFile(record, record.output_file_id, output));
  }
  if (job->has_errors()) {
    INFERD_TRY(KeepFile(record, record.error_file_id, errors));
  }
  INFERD_TRY(store_->Change(record.id, [&](BatchRecord* changed) -> Result<> {
    changed->state = ending;
    changed->completed = job->completed();
    changed->failed = job->failed();
    changed->has_output = job->has_output();
    changed->has_errors = job->has_errors();
    (ending == BatchState::kCompleted ? changed->completed_at
     : ending == BatchState::kExpired ? changed->expired_at
                                      : changed->cancelled_at) = now_s();
    return {};
  }));
  files_->Release(record.input_file_id, record.id);
  RemoveFile(output);
  RemoveFile(errors);
  log::Info("api",
            "{}: {}; {} requests completed, {} failed",
            record.id,
            NameOf(ending),
            job->completed(),
            job->failed());
  return {};
}

Result<> BatchRunner::KeepFile(const BatchRecord& record,
                               const std::string& id,
                               const std::string& path) {
  FileRecord file;
  file.id = id;
  file.owner = record.owner;
  file.filename = record.id + (id == record.output_file_id ? "_output.jsonl" : "_error.jsonl");
  file.purpose = "batch_output";
  file.created_at = now_s();
  file.expires_at = record.output_expiry_s == 0 ? 0 : file.created_at + record.output_expiry_s;
  INFERD_TRY(files_->Adopt(std::move(file), path));
  return {};
}

void BatchRunner::Housekeep() {
  const std::int64_t now_ms = NowMs();
  if (now_ms - housekept_ms_ >= kHousekeepMs) {
    housekept_ms_ = now_ms;
    files_->Expire(now_s());
    changed_.store(true);  // batches that wait expire too
  }
}

}  // namespace inferd::api
