// SPDX-License-Identifier: Apache-2.0
#include "api/core/serving_state.h"

#include "base/error.h"
#include "leader/serving.h"

namespace inferd::api {

std::optional<Error> NotServing(leader::Phase phase, bool draining, Fault* fault) {
  leader::Refusal refusal;
  const auto serving = leader::CheckServing(draining ? leader::Phase::kDraining : phase, &refusal);
  if (serving.ok()) {
    return std::nullopt;
  }
  fault->reason = refusal.reason;
  return serving.error();
}

Error TooManyUnread(Fault* fault) {
  fault->reason = "queue_full";
  return ResourceExhausted("Too many requests wait to be read; try again soon");
}

}  // namespace inferd::api
