// SPDX-License-Identifier: Apache-2.0
#include "leader/join_plan.h"

#include <gtest/gtest.h>

namespace inferd::leader {
namespace {

/// Shards of a tp x pp x ep replica with only their places filled in.
std::vector<spec::ShardPlan> Shards(int tp, int pp, int ep) {
  std::vector<spec::ShardPlan> shards;
  for (int stage = 0; stage < pp; ++stage) {
    for (int group = 0; group < ep; ++group) {
      for (int tp_rank = 0; tp_rank < tp; ++tp_rank) {
        spec::ShardPlan& shard = shards.emplace_back();
        shard.rank = static_cast<int>(shards.size()) - 1;
        shard.tp_rank = tp_rank;
        shard.stage = stage;
        shard.group = group;
        shard.has_embedding = stage == 0;
        shard.has_head = stage == pp - 1;
      }
    }
  }
  return shards;
}

std::vector<RankPlace> Places(std::size_t ranks, std::size_t first_on_second_node) {
  std::vector<RankPlace> places(ranks);
  for (std::size_t i = 0; i < ranks; ++i) {
    places[i].node = i >= first_on_second_node ? 1 : 0;
    places[i].data_endpoint = "10.0.0." + std::to_string(i) + ":1";
  }
  return places;
}

TEST(JoinPlanTest, GroupsOfTwoByTwoByTwo) {
  const auto joins = PlanJoins(Shards(2, 2, 2), Places(8, 8), "s", 3, 1000);
  ASSERT_EQ(joins.size(), 8U);
  // Rank 5 = stage 1, group 0, tp_rank 1.
  EXPECT_EQ(joins[5].tp.ranks, (std::vector<int>{4, 5}));
  EXPECT_EQ(joins[5].ep.ranks, (std::vector<int>{5, 7}));
  EXPECT_EQ(joins[5].pp.ranks, (std::vector<int>{1, 5}));
  // The sampler of group 0 is rank 4; its first stage is ranks 0 and 1.
  EXPECT_EQ(joins[5].ids.ranks, (std::vector<int>{4, 0, 1}));
  EXPECT_EQ(joins[5].generation, 3U);
  for (const spec::JoinRequest& join : joins) {
    EXPECT_TRUE(join.tp.shm && join.ep.shm && join.pp.shm && join.ids.shm);
    EXPECT_TRUE(join.tp.endpoints.empty());
  }
}

TEST(JoinPlanTest, TheSamplerOfOneStageIsNotItsOwnListener) {
  const auto joins = PlanJoins(Shards(3, 1, 1), Places(3, 3), "s", 1, 1000);
  EXPECT_EQ(joins[0].ids.ranks, (std::vector<int>{0, 1, 2}));
  const auto alone = PlanJoins(Shards(1, 1, 1), Places(1, 1), "s", 1, 1000);
  EXPECT_EQ(alone[0].ids.ranks, std::vector<int>{0});
}

TEST(JoinPlanTest, MembersAgreeOnTheIdAndGroupsDiffer) {
  const auto joins = PlanJoins(Shards(2, 2, 1), Places(4, 4), "s", 1, 1000);
  EXPECT_EQ(joins[0].tp.id, joins[1].tp.id);
  EXPECT_NE(joins[0].tp.id, joins[2].tp.id);
  EXPECT_NE(joins[0].tp.id, joins[0].pp.id);
  EXPECT_NE(joins[0].pp.id, joins[1].pp.id);
  EXPECT_EQ(joins[0].ids.id, joins[3].ids.id);
}

TEST(JoinPlanTest, AGroupThatSpansHostsUsesTcp) {
  const auto joins = PlanJoins(Shards(2, 2, 1), Places(4, 2), "s", 1, 1000);
  EXPECT_TRUE(joins[0].tp.shm);
  EXPECT_FALSE(joins[0].pp.shm);
  EXPECT_EQ(joins[0].pp.endpoints, (std::vector<std::string>{"10.0.0.0:1", "10.0.0.2:1"}));
  EXPECT_FALSE(joins[0].ids.shm);
}

}  // namespace
}  // namespace inferd::leader
