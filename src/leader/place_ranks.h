// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a server run: hosts, CPUs and devices.
#pragma once

#include "inferd/result.h"
#include "leader/leader.h"
#include "plan/placement.h"

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

}  // namespace inferd::leader
