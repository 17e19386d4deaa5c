// SPDX-License-Identifier: Apache-2.0
#include "leader/serving.h"

#include "base/error.h"

namespace inferd::leader {

Result<> CheckServing(Phase phase, Refusal* refusal) {
  const auto refuse = [refusal](std::string_view reason, Error error) {
    if (refusal != nullptr) {
      refusal->reason = reason;
    }
    return error;
  };
  switch (phase) {
    case Phase::kReady:
    case Phase::kRecovering:
      break;
    case Phase::kDraining:
    case Phase::kStopped:
      return refuse("draining",
                    Unavailable("The server is shutting down; send the request to another one"));
    case Phase::kStarting:
    case Phase::kLoading:
      return refuse("loading", Unavailable("The model is loading; try again soon"));
    case Phase::kAsleep:
      return refuse("asleep", Unavailable("The server is asleep; POST /wake_up wakes it"));
    case Phase::kFailed:
      return refuse("failed", Unavailable("The model is not available"));
  }
  return {};
}

}  // namespace inferd::leader
