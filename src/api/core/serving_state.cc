// SPDX-License-Identifier: Apache-2.0
#include "api/core/serving_state.h"

#include "base/error.h"

namespace inferd::api {

std::optional<Error> NotServing(leader::Phase phase, bool draining, Fault* fault) {
  if (draining || phase == leader::Phase::kDraining || phase == leader::Phase::kStopped) {
    fault->reason = "draining";
    return Unavailable("The server is shutting down; send the request to another one");
  }
  if (phase == leader::Phase::kStarting || phase == leader::Phase::kLoading) {
    fault->reason = "loading";
    return Unavailable("The model is loading; try again soon");
  }
  if (phase == leader::Phase::kAsleep) {
    fault->reason = "asleep";
    return Unavailable("The server is asleep; POST /wake_up wakes it");
  }
  if (phase == leader::Phase::kFailed) {
    fault->reason = "failed";
    return Unavailable("The model is not available");
  }
  return std::nullopt;
}

}  // namespace inferd::api
