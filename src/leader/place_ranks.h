// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a server run: hosts, CPUs and devices; and what they load there.
#pragma once

#include "inferd/result.h"
#include "leader/leader.h"
#include "leader/sizing.h"
#include "plan/placement.h"
#include "spec/parallel.h"
#include "spec/worker_config.h"

#include <cstdint>
#include <string>
#include <vector>

namespace inferd::leader {

/// One place per rank of all replicas. `agent_cpus` [nodes]: CPUs of each other host, as its agent
/// announced.
Result<std::vector<plan::RankPlacement>> PlaceAllRanks(const LeaderOptions& options,
                                                       const std::vector<std::int32_t>& agent_cpus);

/// The device of each place: those of a host are dealt to its ranks in order.
Result<std::vector<std::string>> DevicesOf(const LeaderOptions& options,
                                           const std::vector<plan::RankPlacement>& places);

/// What the worker of a rank is told to load.
spec::LoadRequest MakeLoad(const LeaderOptions& options,
                           const Sizing& sizing,
                           const spec::ShardPlan& shard,
                           const plan::RankPlacement& place,
                           const std::string& device);

}  // namespace inferd::leader
