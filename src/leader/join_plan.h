// SPDX-License-Identifier: Apache-2.0
// Which communicator groups each rank of a replica joins. Pure.
#pragma once

#include "spec/parallel.h"
#include "spec/worker_config.h"

#include <cstdint>
#include <string>
#include <vector>

namespace inferd::leader {

struct RankPlace {
  std::int32_t node = 0;
  std::string data_endpoint;  // empty on one host
};

/// One JoinRequest per rank, in rank order. `server_id` keeps the groups of two servers of one host
/// apart. A group whose ranks share a node uses shared memory, any other one TCP.
std::vector<spec::JoinRequest> PlanJoins(const std::vector<spec::ShardPlan>& shards,
                                         const std::vector<RankPlace>& places,
                                         const std::string& server_id,
                                         std::uint64_t generation,
                                         std::int64_t step_deadline_ms);

}  // namespace inferd::leader
