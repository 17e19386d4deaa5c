// SPDX-License-Identifier: Apache-2.0
#include "leader/join_plan.h"

#include <fmt/core.h>

#include <functional>

namespace inferd::leader {
namespace {

using Member = std::function<bool(const spec::ShardPlan&)>;

spec::GroupConfig MakeGroup(const std::vector<RankPlace>& places,
                            std::string id,
                            const std::vector<int>& ranks) {
  spec::GroupConfig group;
  group.id = std::move(id);
  group.ranks = ranks;
  for (const int rank : ranks) {
    const auto index = static_cast<std::size_t>(rank);
    group.shm = group.shm && places[index].node == places[static_cast<std::size_t>(ranks[0])].node;
    group.endpoints.push_back(places[index].data_endpoint);
  }
  if (group.shm) {
    group.endpoints.clear();
  }
  return group;
}

std::vector<int> Select(const std::vector<spec::ShardPlan>& shards, const Member& member) {
  std::vector<int> ranks;
  for (const spec::ShardPlan& shard : shards) {
    if (member(shard)) {
      ranks.push_back(shard.rank);
    }
  }
  return ranks;
}

/// Sampler first, then every first-stage rank of the group that is not the sampler.
std::vector<int> IdsRanks(const std::vector<spec::ShardPlan>& shards, int group) {
  std::vector<int> ranks =
      Select(shards, [&](const spec::ShardPlan& s) { return s.group == group && s.is_sampler(); });
  for (const spec::ShardPlan& shard : shards) {
    if (shard.group == group && shard.has_embedding && !shard.is_sampler()) {
      ranks.push_back(shard.rank);
    }
  }
  return ranks;
}

}  // namespace

std::vector<spec::JoinRequest> PlanJoins(const std::vector<spec::ShardPlan>& shards,
                                         const std::vector<RankPlace>& places,
                                         const std::string& server_id,
                                         std::uint64_t generation,
                                         std::int64_t step_deadline_ms) {
  std::vector<spec::JoinRequest> joins;
  for (const spec::ShardPlan& own : shards) {
    spec::JoinRequest join;
    join.generation = generation;
    join.step_deadline_ms = step_deadline_ms;
    const auto id = [&](const char* kind, int a, int b) {
      return fmt::format("{}-g{}-{}-{}-{}", server_id, generation, kind, a, b);
    };
    join.tp = MakeGroup(
        places, id("tp", own.stage, own.group), Select(shards, [&](const spec::ShardPlan& s) {
          return s.stage == own.stage && s.group == own.group;
        }));
    join.ep = MakeGroup(
        places, id("ep", own.stage, own.tp_rank), Select(shards, [&](const spec::ShardPlan& s) {
          return s.stage == own.stage && s.tp_rank == own.tp_rank;
        }));
    join.pp = MakeGroup(
        places, id("pp", own.group, own.tp_rank), Select(shards, [&](const spec::ShardPlan& s) {
          return s.group == own.group && s.tp_rank == own.tp_rank;
        }));
    join.ids = MakeGroup(places, id("ids", own.group, 0), IdsRanks(shards, own.group));
    joins.push_back(std::move(join));
  }
  return joins;
}

}  // namespace inferd::leader
