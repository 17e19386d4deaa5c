// SPDX-License-Identifier: Apache-2.0
// What one key has left: requests and tokens per minute, and requests at once.
#pragma once

#include "base/clock.h"
#include "inferd/result.h"
#include "tenant/api_key.h"
#include "tenant/token_bucket.h"

#include <cstdint>
#include <mutex>
#include <optional>

namespace inferd::tenant {

/// For x-ratelimit-*. limit 0: there is none.
struct RateState {
  std::int64_t limit = 0;
  std::int64_t remaining = 0;
  std::int64_t reset_ms = 0;  // until the allowance is whole again
};

struct LimitState {
  RateState requests;
  RateState tokens;
};

/// Why a request was put off, with kResourceExhausted.
struct Refusal {
  std::int64_t retry_after_ms = 0;
  LimitState limits;
};

/// Lives as long as the key's name is known, over reloads of the key file. Any thread.
class Quota {
 public:
  /// `clock` outlives the quota.
  Quota(const KeyLimits& limits, const base::Clock* clock);

  void SetLimits(const KeyLimits& limits);
  /// Takes one request and one place; on failure it takes neither.
  Result<> Begin(Refusal* refusal);
  /// Takes tokens; what is not used comes back by Settle.
  Result<> Reserve(std::int64_t tokens, Refusal* refusal);
  void Settle(std::int64_t reserved, std::int64_t used);
  /// Gives back the place.
  void End();

  LimitState Limits() const;

 private:
  LimitState LimitsLocked(std::int64_t now_ns) const;
  static void SetBucket(std::optional<TokenBucket>* bucket,
                        std::int64_t per_minute,
                        std::int64_t now_ns);

  const base::Clock* clock_;
  mutable std::mutex mutex_;
  KeyLimits limits_;
  mutable std::optional<TokenBucket> requests_;  // reading refills
  mutable std::optional<TokenBucket> tokens_;
  std::int64_t open_ = 0;
};

}  // namespace inferd::tenant
