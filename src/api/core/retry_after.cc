// SPDX-License-Identifier: Apache-2.0
#include "api/core/retry_after.h"

#include <algorithm>
#include <random>

namespace inferd::api {

std::int64_t RetryAfterMs(const leader::Refusal& refusal, const Error& error) {
  if (error.code() != Code::kResourceExhausted) {
    return 0;
  }
  thread_local std::minstd_rand random{std::random_device{}()};
  const std::int64_t least_ms = std::max<std::int64_t>(refusal.retry_after_ms, 1);
  return least_ms + std::uniform_int_distribution<std::int64_t>(0, least_ms / 4 + 250)(random);
}

}  // namespace inferd::api
