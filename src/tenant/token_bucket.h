// SPDX-License-Identifier: Apache-2.0
// A token bucket: holds up to one minute's allowance and refills evenly. Pure arithmetic on times
// that the caller gives.
#pragma once

#include <cstdint>

namespace inferd::tenant {

/// Not thread-safe. Times are steady nanoseconds that never go back.
class TokenBucket {
 public:
  /// Full at first. `per_minute` > 0.
  TokenBucket(std::int64_t per_minute, std::int64_t now_ns)
      : capacity_(static_cast<double>(per_minute)), level_(capacity_), then_ns_(now_ns) {}

  /// Another allowance from now on; what was used stays used.
  void Resize(std::int64_t per_minute, std::int64_t now_ns);

  /// 0 when `amount` can be taken now; else the time until it can. An amount above the capacity
  /// needs a full bucket: it is let through then and leaves a debt.
  std::int64_t WaitNs(std::int64_t amount, std::int64_t now_ns);
  /// Takes, into debt if need be.
  void Take(std::int64_t amount, std::int64_t now_ns);
  /// Gives back what was reserved and not used.
  void GiveBack(std::int64_t amount, std::int64_t now_ns);

  std::int64_t limit() const { return static_cast<std::int64_t>(capacity_); }
  /// Whole units that are left; 0 in debt.
  std::int64_t Remaining(std::int64_t now_ns);
  /// Time until it is full again.
  std::int64_t ResetNs(std::int64_t now_ns);

 private:
  void Refill(std::int64_t now_ns);
  std::int64_t TimeFor(double amount) const;

  double capacity_;
  double level_;
  std::int64_t then_ns_;  // when level_ was right
};

}  // namespace inferd::tenant
