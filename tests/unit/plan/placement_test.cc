// SPDX-License-Identifier: Apache-2.0
#include "plan/placement.h"

#include <gtest/gtest.h>

namespace inferd::plan {
namespace {

spec::ParallelSpec Parallel(int tp, int pp, int ep, int dp) {
  spec::ParallelSpec parallel;
  parallel.tp = tp;
  parallel.pp = pp;
  parallel.ep = ep;
  parallel.dp = dp;
  return parallel;
}

std::vector<int> Nodes(const std::vector<RankPlacement>& places) {
  std::vector<int> nodes;
  for (const RankPlacement& place : places) {
    nodes.push_back(place.node);
  }
  return nodes;
}

TEST(PlacementTest, OneRankGetsAllCpus) {
  const auto places = PlaceRanks(Parallel(1, 1, 1, 1), {{{0, 1, 5}}}, false);
  ASSERT_TRUE(places.ok());
  EXPECT_EQ((*places)[0].threads, 3);
  EXPECT_EQ((*places)[0].cpus, (std::vector<int>{0, 1, 5}));
}

TEST(PlacementTest, CpusAreDealtEvenlyAndNeverTwice) {
  const auto places = PlaceRanks(Parallel(3, 1, 1, 1), {{{0, 1, 2, 3, 4, 5, 6}}}, false);
  ASSERT_TRUE(places.ok());
  std::vector<int> all;
  for (const RankPlacement& place : *places) {
    EXPECT_EQ(place.threads, static_cast<int>(place.cpus.size()));
    EXPECT_GE(place.threads, 2);
    all.insert(all.end(), place.cpus.begin(), place.cpus.end());
  }
  EXPECT_EQ(all, (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
}

TEST(PlacementTest, MoreRanksThanCpusAreNotPinned) {
  const auto places = PlaceRanks(Parallel(4, 1, 1, 1), {{{0, 1}}}, false);
  ASSERT_TRUE(places.ok());
  for (const RankPlacement& place : *places) {
    EXPECT_EQ(place.threads, 1);
    EXPECT_TRUE(place.cpus.empty());
  }
}

TEST(PlacementTest, StagesSpreadOverHostsAndGroupsStayTogether) {
  const auto places = PlaceRanks(Parallel(2, 2, 1, 1), {{{0, 1}}, {{0, 1}}}, false);
  ASSERT_TRUE(places.ok());
  EXPECT_EQ(Nodes(*places), (std::vector<int>{0, 0, 1, 1}));
}

TEST(PlacementTest, ReplicasSpreadOverHosts) {
  const auto places = PlaceRanks(Parallel(2, 1, 1, 4), {{{0, 1}}, {{0, 1}}}, false);
  ASSERT_TRUE(places.ok());
  EXPECT_EQ(Nodes(*places), (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1}));
}

TEST(PlacementTest, AGroupIsSplitOverHostsOnlyWhenAllowed) {
  const std::vector<NodeInfo> nodes{{{0, 1}}, {{0, 1}}};
  const auto refused = PlaceRanks(Parallel(2, 1, 1, 1), nodes, false);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("--allow-cross-host-tp"), std::string::npos);
  const auto allowed = PlaceRanks(Parallel(2, 1, 1, 1), nodes, true);
  ASSERT_TRUE(allowed.ok());
  EXPECT_EQ(Nodes(*allowed), (std::vector<int>{0, 1}));
}

TEST(PlacementTest, MoreHostsThanRanksAreRefused) {
  EXPECT_FALSE(PlaceRanks(Parallel(1, 1, 1, 1), {{{0}}, {{0}}}, true).ok());
}

}  // namespace
}  // namespace inferd::plan
