// SPDX-License-Identifier: Apache-2.0
#include "api/batch/offline_batch.h"

#include "api/files/disk.h"
#include "base/clock.h"
#include "base/error.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

namespace inferd::api {
namespace {

constexpr auto kWait = std::chrono::milliseconds(50);
constexpr std::size_t kShownErrors = 10;

Error BadInput(const std::string& path, const std::vector<BatchError>& errors) {
  std::string text;
  for (std::size_t i = 0; i < std::min(errors.size(), kShownErrors); ++i) {
    text += fmt::format("\n  line {}: {}", errors[i].line, errors[i].message);
  }
  if (errors.size() > kShownErrors) {
    text += fmt::format("\n  and {} more", errors.size() - kShownErrors);
  }
  return InvalidArgument("{} cannot be run:{}", path, text);
}

}  // namespace

Result<std::unique_ptr<OfflineBatch>> OfflineBatch::Open(const OfflineOptions& options) {
  std::unique_ptr<OfflineBatch> batch(new OfflineBatch(options));
  std::error_code ignored;
  if (!options.overwrite && std::filesystem::exists(options.output, ignored)) {
    return AlreadyExists("{} is there already; give --overwrite, or another --output-file",
                         options.output);
  }
  INFERD_ASSIGN(base::MappedFile text, base::MappedFile::Open(options.input));
  const std::string_view content(reinterpret_cast<const char*>(text.bytes().data()),
                                 static_cast<std::size_t>(text.size()));
  BatchInput input = ReadBatchInput(content, "", options.limits);
  if (!input.errors.empty()) {
    return BadInput(options.input, input.errors);
  }
  batch->partial_ = options.output + ".partial";
  INFERD_ASSIGN(batch->lock_, LockFile(batch->partial_));
  auto job = BatchJob::Open(std::move(input), std::move(text), batch->partial_, "");
  if (!job.ok() && job.error().code() == Code::kInvalidArgument) {
    return InvalidArgument("{}; remove it, or give another --output-file", job.error().message());
  }
  INFERD_ASSIGN(batch->job_, std::move(job));
  return batch;
}

OfflineCounts OfflineBatch::counts() const {
  return {static_cast<std::int64_t>(job_->total()), job_->completed(), job_->failed()};
}

Result<OfflineCounts> OfflineBatch::Run(std::shared_ptr<const ServedModel> model,
                                        leader::InferenceService* service,
                                        std::size_t max_running,
                                        const std::function<bool()>& stopped,
                                        const std::function<void(const OfflineCounts&)>& progress) {
  lines_ = std::make_unique<LineRunner>(
      std::move(model), service, &metrics_, nullptr, max_running, options_.call);
  std::uint64_t tag = 0;
  while (job_->left() + job_->running() > 0) {
    if (stopped()) {
      lines_->Stop();
      INFERD_TRY(job_->Sync());
      return Cancelled(
          "stopped; {} of {} requests are answered and kept in {}: the same command "
          "goes on from there",
          job_->completed() + job_->failed(),
          job_->total(),
          partial_);
    }
    if (service->phase() == leader::Phase::kFailed) {
      lines_->Stop();
      return Unavailable("the model's workers failed and could not be replaced; see the log above");
    }
    const std::int64_t now_ms = base::SteadyClock::Get().NowMs();
    while (job_->Ready(now_ms) && lines_->HasRoom()) {
      job_->Start(lines_.get(), ++tag, "-");
    }
    auto answer = lines_->Take(kWait);
    for (; answer; answer = lines_->Take(std::chrono::milliseconds(0))) {
      INFERD_TRY(job_->Take(*std::move(answer), base::SteadyClock::Get().NowMs()));
    }
    progress(counts());
  }
  lines_->Stop();
  INFERD_TRY(Finish());
  return counts();
}

Result<> OfflineBatch::Finish() {
  INFERD_TRY(job_->Sync());
  std::error_code error;
  std::filesystem::rename(partial_, options_.output, error);
  if (error) {
    return Internal("cannot rename {} to {}: {}", partial_, options_.output, error.message());
  }
  const std::string folder = std::filesystem::path(options_.output).parent_path().string();
  return SyncFolder(folder.empty() ? "." : folder);
}

}  // namespace inferd::api
