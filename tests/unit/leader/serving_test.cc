// SPDX-License-Identifier: Apache-2.0
#include "leader/serving.h"

#include <gtest/gtest.h>

#include <string_view>

namespace inferd::leader {
namespace {

TEST(Serving, EachPhaseThatTakesNothingHasItsWord) {
  const struct {
    Phase phase;
    std::string_view reason;  // empty: requests are taken
  } cases[] = {{Phase::kStarting, "loading"},
               {Phase::kLoading, "loading"},
               {Phase::kReady, ""},
               {Phase::kRecovering, ""},
               {Phase::kDraining, "draining"},
               {Phase::kStopped, "draining"},
               {Phase::kFailed, "failed"},
               {Phase::kAsleep, "asleep"}};
  for (const auto& one : cases) {
    Refusal refusal;
    const auto serving = CheckServing(one.phase, &refusal);
    EXPECT_EQ(refusal.reason, one.reason);
    EXPECT_EQ(serving.ok(), one.reason.empty()) << one.reason;
    EXPECT_EQ(CheckServing(one.phase, nullptr).ok(), serving.ok());
    if (!serving.ok()) {
      EXPECT_EQ(serving.error().code(), Code::kUnavailable);
    }
  }
}

}  // namespace
}  // namespace inferd::leader
