// SPDX-License-Identifier: Apache-2.0
#include "tenant/quota.h"

#include "base/error.h"

#include <algorithm>

namespace inferd::tenant {
namespace {

// When a running request ends is not known; a client may ask again after this.
constexpr std::int64_t kPlaceRetryMs = 1000;

std::int64_t MsUp(std::int64_t ns) { return (ns + base::kNsPerMs - 1) / base::kNsPerMs; }

RateState StateOf(std::optional<TokenBucket>* bucket, std::int64_t now_ns) {
  if (!*bucket) {
    return {};
  }
  return {(*bucket)->limit(), (*bucket)->Remaining(now_ns), MsUp((*bucket)->ResetNs(now_ns))};
}

}  // namespace

Quota::Quota(const KeyLimits& limits, const base::Clock* clock) : clock_(clock) {
  SetLimits(limits);
}

void Quota::SetBucket(std::optional<TokenBucket>* bucket,
                      std::int64_t per_minute,
                      std::int64_t now_ns) {
  if (per_minute == 0) {
    bucket->reset();
  } else if (!*bucket) {
    bucket->emplace(per_minute, now_ns);
  } else {
    (*bucket)->Resize(per_minute, now_ns);
  }
}

void Quota::SetLimits(const KeyLimits& limits) {
  const std::lock_guard lock(mutex_);
  const std::int64_t now_ns = clock_->NowNs();
  limits_ = limits;
  SetBucket(&requests_, limits.requests_per_minute, now_ns);
  SetBucket(&tokens_, limits.tokens_per_minute, now_ns);
}

Result<> Quota::Begin(Refusal* refusal) {
  const std::lock_guard lock(mutex_);
  const std::int64_t now_ns = clock_->NowNs();
  if (limits_.max_concurrency > 0 && open_ >= limits_.max_concurrency) {
    *refusal = {kPlaceRetryMs, LimitsLocked(now_ns)};
    return ResourceExhausted(
        "This API key has {} requests running, as many as it may; wait for one to end", open_);
  }
  const std::int64_t wait_ms = requests_ ? MsUp(requests_->WaitNs(1, now_ns)) : 0;
  if (wait_ms > 0) {
    *refusal = {wait_ms, LimitsLocked(now_ns)};
    return ResourceExhausted("This API key may send {} requests per minute; try again in {:.3f} s",
                             requests_->limit(),
                             static_cast<double>(wait_ms) * 1e-3);
  }
  if (requests_) {
    requests_->Take(1, now_ns);
  }
  ++open_;
  return {};
}

Result<> Quota::Reserve(std::int64_t tokens, Refusal* refusal) {
  const std::lock_guard lock(mutex_);
  if (!tokens_) {
    return {};
  }
  const std::int64_t now_ns = clock_->NowNs();
  const std::int64_t wait_ms = MsUp(tokens_->WaitNs(tokens, now_ns));
  if (wait_ms > 0) {
    *refusal = {wait_ms, LimitsLocked(now_ns)};
    return ResourceExhausted(
        "This request may use {} tokens; this API key has {} of its {} per minute left; try again "
        "in {:.3f} s or lower max_tokens",
        tokens,
        tokens_->Remaining(now_ns),
        tokens_->limit(),
        static_cast<double>(wait_ms) * 1e-3);
  }
  tokens_->Take(tokens, now_ns);
  return {};
}

void Quota::Settle(std::int64_t reserved, std::int64_t used) {
  const std::lock_guard lock(mutex_);
  if (!tokens_) {
    return;
  }
  const std::int64_t now_ns = clock_->NowNs();
  if (used > reserved) {
    tokens_->Take(used - reserved, now_ns);
  } else {
    tokens_->GiveBack(reserved - used, now_ns);
  }
}

void Quota::End() {
  const std::lock_guard lock(mutex_);
  --open_;
}

LimitState Quota::LimitsLocked(std::int64_t now_ns) const {
  return {StateOf(&requests_, now_ns), StateOf(&tokens_, now_ns)};
}

LimitState Quota::Limits() const {
  const std::lock_guard lock(mutex_);
  return LimitsLocked(clock_->NowNs());
}

}  // namespace inferd::tenant
