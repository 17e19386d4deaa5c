// SPDX-License-Identifier: Apache-2.0
// The usage ledger: a row per request in an SQLite file, and a JSON line per request in a log
// file. A thread of its own writes; who reports never waits, and what it cannot keep up with is
// counted as dropped.
#pragma once

#include "base/bounded_queue.h"
#include "inferd/result.h"
#include "tenant/usage.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

namespace inferd::tenant {

struct LedgerOptions {
  std::string database = {};   // SQLite file, made if absent; empty: none
  std::string log_file = {};   // JSON lines are appended; empty: none
  std::size_t queue = 8192;    // records that may wait; beyond: dropped
  std::int64_t keep_days = 0;  // rows that are older are removed; 0: none is
};

class UsageLedger final : public UsageSink {
 public:
  /// Opens the files and starts the thread.
  static Result<std::shared_ptr<UsageLedger>> Open(const LedgerOptions& options);
  /// Writes what waits, then ends the thread.
  ~UsageLedger() override;

  void Put(UsageRecord record) override;
  /// Records that were lost: the queue was full or a file could not be written.
  std::uint64_t dropped() const override { return dropped_.load(std::memory_order_relaxed); }

 private:
  struct Files;
  UsageLedger(std::size_t queue, std::unique_ptr<Files> files);
  void Work();
  void Complain(std::string_view why);

  base::BoundedQueue<UsageRecord> queue_;
  std::atomic<std::uint64_t> dropped_{0};
  std::unique_ptr<Files> files_;  // the thread's
  std::uint64_t reported_ = 0;    // of dropped_
  std::int64_t complained_ms_ = 0;
  std::jthread thread_;  // last: it uses the rest
};

/// The JSON line of a record, with its line break.
std::string JsonLine(const UsageRecord& record);

}  // namespace inferd::tenant
