// SPDX-License-Identifier: Apache-2.0
// The states of a batch, in OpenAI's words.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace inferd::api {

/// validating  -> in_progress | failed (the file is bad) | cancelling
/// in_progress -> finalizing (all answered, or expired) | cancelling
/// cancelling  -> cancelled (what ran has ended, what was answered is kept)
/// finalizing  -> completed | expired
enum class BatchState : std::uint8_t {
  kValidating,
  kFailed,
  kInProgress,
  kFinalizing,
  kCompleted,
  kExpired,
  kCancelling,
  kCancelled,
};

inline constexpr std::array<std::string_view, 8> kBatchStateNames{"validating",
                                                                  "failed",
                                                                  "in_progress",
                                                                  "finalizing",
                                                                  "completed",
                                                                  "expired",
                                                                  "cancelling",
                                                                  "cancelled"};

inline std::string_view NameOf(BatchState state) {
  return kBatchStateNames[static_cast<std::size_t>(state)];
}

inline bool IsOver(BatchState state) {
  return state == BatchState::kFailed || state == BatchState::kCompleted ||
         state == BatchState::kExpired || state == BatchState::kCancelled;
}

}  // namespace inferd::api
