// SPDX-License-Identifier: Apache-2.0
// INFERD_CHECK: always on; for what only our own bug can break. A worker that dies of it is a
// normal event for the leader.
#pragma once

#include <source_location>
#include <string_view>

namespace inferd::base {

/// Logs the failed condition with its place and aborts the process.
[[noreturn]] void CheckFailed(std::string_view condition,
                              std::string_view message,
                              std::source_location place = std::source_location::current());

}  // namespace inferd::base

#define INFERD_CHECK(condition)                    \
  do {                                             \
    if (!(condition)) [[unlikely]] {               \
      ::inferd::base::CheckFailed(#condition, {}); \
    }                                              \
  } while (false)

#define INFERD_CHECK_MSG(condition, message)              \
  do {                                                    \
    if (!(condition)) [[unlikely]] {                      \
      ::inferd::base::CheckFailed(#condition, (message)); \
    }                                                     \
  } while (false)
