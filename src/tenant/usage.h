// SPDX-License-Identifier: Apache-2.0
// What one request used, without a word of its text: plain data, and where it is handed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace inferd::tenant {

enum class UsageOutcome : std::uint8_t { kDone, kClientLeft, kFailed };

std::string_view OutcomeName(UsageOutcome outcome);

/// What the front end reports when a request is over.
struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;  // part of prompt_tokens
  std::int64_t completion_tokens = 0;
  std::int64_t reasoning_tokens = 0;  // part of completion_tokens
  std::int64_t queue_ms = -1;         // until the model took it up; -1: it never did
  std::int64_t ttft_ms = -1;          // until the first token; -1: none came
  std::int64_t total_ms = 0;
  UsageOutcome outcome = UsageOutcome::kDone;
};

/// A row of the ledger.
struct UsageRecord {
  std::int64_t unix_ms = 0;  // when it ended
  std::string key;           // the key's name; "-": the server has no keys
  std::string model;
  std::string version;
  std::string operation;  // "/v1/chat/completions", "inferd.v1.Inference/Completion"
  std::string request_id;
  Usage usage;
};

/// Takes records. Any thread; must not block.
class UsageSink {
 public:
  virtual ~UsageSink() = default;
  virtual void Put(UsageRecord record) = 0;
  /// Records that were lost.
  virtual std::uint64_t dropped() const { return 0; }
};

}  // namespace inferd::tenant
