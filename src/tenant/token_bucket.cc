// SPDX-License-Identifier: Apache-2.0
#include "tenant/token_bucket.h"

#include <algorithm>
#include <cmath>

namespace inferd::tenant {
namespace {

constexpr double kMinuteNs = 60e9;
// A wait that was served must be enough: rounding may not leave a sliver of a unit to wait for.
constexpr double kSliver = 1e-6;

}  // namespace

void TokenBucket::Refill(std::int64_t now_ns) {
  if (now_ns > then_ns_) {
    level_ = std::min(capacity_,
                      level_ + capacity_ * static_cast<double>(now_ns - then_ns_) / kMinuteNs);
    then_ns_ = now_ns;
  }
}

std::int64_t TokenBucket::TimeFor(double amount) const {
  return amount <= kSliver ? 0
                           : static_cast<std::int64_t>(std::ceil(amount / capacity_ * kMinuteNs));
}

void TokenBucket::Resize(std::int64_t per_minute, std::int64_t now_ns) {
  Refill(now_ns);
  const double used = capacity_ - level_;
  capacity_ = static_cast<double>(per_minute);
  level_ = capacity_ - used;
}

std::int64_t TokenBucket::WaitNs(std::int64_t amount, std::int64_t now_ns) {
  Refill(now_ns);
  return TimeFor(std::min(static_cast<double>(amount), capacity_) - level_);
}

void TokenBucket::Take(std::int64_t amount, std::int64_t now_ns) {
  Refill(now_ns);
  level_ -= static_cast<double>(amount);
}

void TokenBucket::GiveBack(std::int64_t amount, std::int64_t now_ns) {
  Refill(now_ns);
  level_ = std::min(capacity_, level_ + static_cast<double>(amount));
}

std::int64_t TokenBucket::Remaining(std::int64_t now_ns) {
  Refill(now_ns);
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(std::floor(level_ + kSliver)));
}

std::int64_t TokenBucket::ResetNs(std::int64_t now_ns) {
  Refill(now_ns);
  return TimeFor(capacity_ - level_);
}

}  // namespace inferd::tenant
