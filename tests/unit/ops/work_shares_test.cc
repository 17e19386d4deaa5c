// SPDX-License-Identifier: Apache-2.0
#include "ops/work_shares.h"

#include "ops/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace inferd::ops {
namespace {

TEST(WorkSharesTest, AThreadBeginsWithItsOwnShareInOrder) {
  WorkShares shares(2);
  shares.Deal(6);
  EXPECT_EQ(shares.Next(1), 3);
  EXPECT_EQ(shares.Next(0), 0);
  EXPECT_EQ(shares.Next(1), 4);
  EXPECT_EQ(shares.Next(1), 5);
  EXPECT_EQ(shares.Next(1), 2) << "then it takes the last piece of the other";
  EXPECT_EQ(shares.Next(0), 1);
  EXPECT_EQ(shares.Next(0), -1);
  EXPECT_EQ(shares.Next(1), -1);
}

TEST(WorkSharesTest, FewerPiecesThanThreads) {
  WorkShares shares(4);
  shares.Deal(1);
  EXPECT_EQ(shares.Next(0), 0);
  for (int thread = 0; thread < 4; ++thread) {
    EXPECT_EQ(shares.Next(thread), -1);
  }
  shares.Deal(0);
  EXPECT_EQ(shares.Next(2), -1);
}

TEST(WorkSharesTest, EachPieceIsGivenOutOnce) {
  constexpr int kThreads = 4;
  auto team = ThreadTeam::Make(kThreads, {}).value();
  WorkShares shares(kThreads);
  for (int round = 0; round < 300; ++round) {
    const std::int64_t pieces = round % 97;
    std::vector<std::atomic<int>> given(static_cast<std::size_t>(pieces));
    shares.Deal(pieces);
    team->Run([&](int thread) {
      for (std::int64_t p = shares.Next(thread); p >= 0; p = shares.Next(thread)) {
        given[static_cast<std::size_t>(p)].fetch_add(1);
      }
    });
    for (const std::atomic<int>& count : given) {
      ASSERT_EQ(count.load(), 1) << round;
    }
  }
}

}  // namespace
}  // namespace inferd::ops
