// SPDX-License-Identifier: Apache-2.0
#include "api/core/refusal.h"

#include <algorithm>
#include <cstdint>
#include <random>

namespace inferd::api {

Fault RefusedFor(const leader::Refusal& refusal, const Error& error) {
  Fault fault;
  fault.reason = refusal.reason;
  if (error.code() == Code::kResourceExhausted) {
    thread_local std::minstd_rand random{std::random_device{}()};
    const std::int64_t least_ms = std::max<std::int64_t>(refusal.retry_after_ms, 1);
    fault.retry_after_ms =
        least_ms + std::uniform_int_distribution<std::int64_t>(0, least_ms / 4 + 250)(random);
  }
  return fault;
}

}  // namespace inferd::api
