// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <gtest/gtest.h>

namespace inferd::base {
namespace {

TEST(Clock, FakeStandsStillUntilTold) {
  FakeClock clock;
  const Clock& as_clock = clock;
  EXPECT_EQ(as_clock.NowNs(), 0);
  clock.AdvanceMs(3);
  clock.AdvanceNs(5);
  EXPECT_EQ(as_clock.NowNs(), 3'000'005);
  EXPECT_EQ(as_clock.NowMs(), 3);
}

TEST(Clock, SteadyNeverGoesBack) {
  std::int64_t last = SteadyClock::Get().NowNs();
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t now = SteadyClock::Get().NowNs();
    EXPECT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace inferd::base
