// SPDX-License-Identifier: Apache-2.0
#include "tenant/usage_ledger.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "tenant/sqlite.h"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

namespace inferd::tenant {
namespace {

constexpr std::size_t kBatch = 1024;  // rows per transaction
constexpr std::int64_t kComplaintMs = 60'000;
constexpr std::int64_t kDayMs = 24 * 3'600'000;
constexpr std::int64_t kPruneMs = 3'600'000;
constexpr std::int64_t kPrunedAtOnce = 10'000;
constexpr std::int64_t kSchemaVersion = 1;

constexpr const char* kSchema =
    "PRAGMA journal_mode=WAL;"
    "PRAGMA synchronous=NORMAL;"
    "CREATE TABLE IF NOT EXISTS usage("
    "unix_ms INTEGER NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, version TEXT NOT NULL,"
    "operation TEXT NOT NULL, request_id TEXT NOT NULL, prompt_tokens INTEGER NOT NULL,"
    "cached_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,"
    "reasoning_tokens INTEGER NOT NULL, queue_ms INTEGER, ttft_ms INTEGER,"
    "total_ms INTEGER NOT NULL, outcome TEXT NOT NULL);"
    "CREATE INDEX IF NOT EXISTS usage_by_time ON usage(unix_ms);"
    "PRAGMA user_version=1;";

Result<Database> OpenDatabase(const std::string& path) {
  INFERD_ASSIGN(Database database, Database::Open(path, Database::Mode::kWrite));
  {
    INFERD_ASSIGN(Statement version, database.Prepare("PRAGMA user_version"));
    INFERD_TRY(version.Step());
    if (version.Int(0) > kSchemaVersion) {
      return FailedPrecondition(
          "{} was written by a newer inferd (layout {}, this one knows {}); give another "
          "--usage-db",
          path,
          version.Int(0),
          kSchemaVersion);
    }
  }
  if (const auto made = database.Run(kSchema); !made.ok()) {
    return made.error().WithContext(path);
  }
  return database;
}

std::int64_t UnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void BindMs(Statement* statement, int index, std::int64_t ms) {
  if (ms < 0) {
    statement->BindNull(index);
  } else {
    statement->BindInt(index, ms);
  }
}

}  // namespace

std::string JsonLine(const UsageRecord& record) {
  const auto ms = [](std::int64_t value) {
    return value < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
  };
  const Usage& usage = record.usage;
  const nlohmann::ordered_json line = {{"unix_ms", record.unix_ms},
                                       {"key", record.key},
                                       {"model", record.model},
                                       {"version", record.version},
                                       {"operation", record.operation},
                                       {"request_id", record.request_id},
                                       {"prompt_tokens", usage.prompt_tokens},
                                       {"cached_tokens", usage.cached_tokens},
                                       {"completion_tokens", usage.completion_tokens},
                                       {"reasoning_tokens", usage.reasoning_tokens},
                                       {"queue_ms", ms(usage.queue_ms)},
                                       {"ttft_ms", ms(usage.ttft_ms)},
                                       {"total_ms", usage.total_ms},
                                       {"outcome", OutcomeName(usage.outcome)}};
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// ---- the files

struct UsageLedger::Files {
  std::optional<Database> database;
  std::optional<Statement> insert;
  std::optional<Statement> remove;  // where rows are not kept for ever
  std::int64_t keep_days = 0;
  std::int64_t pruned_ms = 0;
  std::string log_path;
  base::UniqueFd log;

  Result<> OpenLog() {
    constexpr mode_t kOwnerAndGroup = 0640;
    log.Reset(open(log_path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, kOwnerAndGroup));
    if (!log.valid()) {
      return Unavailable("cannot open the usage log {}: {}", log_path, std::strerror(errno));
    }
    return {};
  }

  /// After a rotation the path names another file, or none.
  Result<> FollowRotation() {
    struct stat ours {};
    struct stat named {};
    if (fstat(log.get(), &ours) == 0 && stat(log_path.c_str(), &named) == 0 &&
        ours.st_ino == named.st_ino && ours.st_dev == named.st_dev) {
      return {};
    }
    return OpenLog();
  }

  Result<> WriteLog(const std::vector<UsageRecord>& batch) {
    if (log_path.empty()) {
      return {};
    }
    INFERD_TRY(FollowRotation());
    std::string lines;
    for (const UsageRecord& record : batch) {
      lines += JsonLine(record);
    }
    for (std::size_t at = 0; at < lines.size();) {
      const ssize_t n = write(log.get(), lines.data() + at, lines.size() - at);
      if (n < 0 && errno == EINTR) {
        continue;
      }
      if (n <= 0) {
        return Unavailable("cannot write the usage log {}: {}", log_path, std::strerror(errno));
      }
      at += static_cast<std::size_t>(n);
    }
    return {};
  }

  Result<> Insert(const UsageRecord& record) {
    const Usage& usage = record.usage;
    insert->BindInt(1, record.unix_ms);
    insert->BindText(2, record.key);
    insert->BindText(3, record.model);
    insert->BindText(4, record.version);
    insert->BindText(5, record.operation);
    insert->BindText(6, record.request_id);
    insert->BindInt(7, usage.prompt_tokens);
    insert->BindInt(8, usage.cached_tokens);
    insert->BindInt(9, usage.completion_tokens);
    insert->BindInt(10, usage.reasoning_tokens);
    BindMs(&*insert, 11, usage.queue_ms);
    BindMs(&*insert, 12, usage.ttft_ms);
    insert->BindInt(13, usage.total_ms);
    insert->BindText(14, OutcomeName(usage.outcome));
    INFERD_TRY(insert->Step());
    return {};
  }

  /// Removes rows that are older than is kept, some at a time: answers do not wait, but rows do.
  Result<> Prune(std::int64_t now_ms) {
    if (!remove || now_ms - pruned_ms < kPruneMs) {
      return {};
    }
    remove->BindInt(1, now_ms - keep_days * kDayMs);
    remove->BindInt(2, kPrunedAtOnce);
    INFERD_TRY(remove->Step());
    INFERD_ASSIGN(Statement changes, database->Prepare("SELECT changes()"));
    INFERD_TRY(changes.Step());
    if (changes.Int(0) < kPrunedAtOnce) {  // else there may be more
      pruned_ms = now_ms;
    }
    return {};
  }

  Result<> WriteRows(const std::vector<UsageRecord>& batch) {
    if (!database) {
      return {};
    }
    INFERD_TRY(database->Run("BEGIN IMMEDIATE"));
    for (const UsageRecord& record : batch) {
      if (auto inserted = Insert(record); !inserted.ok()) {
        if (const auto undone = database->Run("ROLLBACK"); !undone.ok()) {
          return inserted.error().WithContext(undone.error().message());
        }
        return inserted;
      }
    }
    return database->Run("COMMIT");
  }
};

// ---- UsageLedger

Result<std::shared_ptr<UsageLedger>> UsageLedger::Open(const LedgerOptions& options) {
  auto files = std::make_unique<Files>();
  if (!options.database.empty()) {
    INFERD_ASSIGN(files->database, OpenDatabase(options.database));
    INFERD_ASSIGN(
        files->insert,
        files->database->Prepare("INSERT INTO usage VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?)"));
  }
  if (files->database && options.keep_days > 0) {
    INFERD_ASSIGN(files->remove,
                  files->database->Prepare("DELETE FROM usage WHERE rowid IN (SELECT rowid FROM "
                                           "usage WHERE unix_ms < ? ORDER BY unix_ms LIMIT ?)"));
    files->keep_days = options.keep_days;
  }
  files->log_path = options.log_file;
  if (!options.log_file.empty()) {
    INFERD_TRY(files->OpenLog());
  }
  return std::shared_ptr<UsageLedger>(new UsageLedger(options.queue, std::move(files)));
}

UsageLedger::UsageLedger(std::size_t queue, std::unique_ptr<Files> files)
    : queue_(queue), files_(std::move(files)), thread_([this] {
        try {
          Work();
        } catch (const std::exception& error) {  // only an exhausted heap gets here
          base::CheckFailed("usage ledger thread", error.what());
        }
      }) {}

UsageLedger::~UsageLedger() {
  queue_.Close();
  thread_.join();
}

void UsageLedger::Put(UsageRecord record) {
  if (!queue_.TryPush(std::move(record))) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
  }
}

/// Says, now and then, how many records were lost since it last did.
void UsageLedger::Complain(std::string_view why) {
  const std::uint64_t total = dropped();
  const std::int64_t now_ms = base::SteadyClock::Get().NowMs();
  if (total == reported_ || (complained_ms_ != 0 && now_ms - complained_ms_ < kComplaintMs)) {
    return;
  }
  log::Warning("tenant", "{} usage records are lost, {} in all: {}", total - reported_, total, why);
  reported_ = total;
  complained_ms_ = now_ms;
}

void UsageLedger::Work() {
  for (;;) {
    if (const auto pruned = files_->Prune(UnixMs()); !pruned.ok()) {
      log::Warning("tenant", "old usage rows stay for now: {}", pruned.error().message());
    }
    auto first = queue_.PopFor(std::chrono::seconds(10));
    if (!first) {
      if (queue_.closed()) {
        return;
      }
      continue;
    }
    std::vector<UsageRecord> batch;
    batch.push_back(*std::move(first));
    while (batch.size() < kBatch) {
      auto next = queue_.TryPop();
      if (!next) {
        break;
      }
      batch.push_back(*std::move(next));
    }
    const Result<> rows = files_->WriteRows(batch);
    const Result<> lines = files_->WriteLog(batch);
    if (rows.ok() && lines.ok()) {
      Complain("they came faster than they could be written");
      continue;
    }
    dropped_.fetch_add(batch.size(), std::memory_order_relaxed);
    Complain((rows.ok() ? lines : rows).error().message());
  }
}

}  // namespace inferd::tenant
