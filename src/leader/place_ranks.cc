// SPDX-License-Identifier: Apache-2.0
#include "leader/place_ranks.h"

#include "leader/host_resources.h"
#include "spec/device_choice.h"

#include <cstddef>
#include <map>
#include <numeric>
#include <utility>

namespace inferd::leader {

Result<std::vector<plan::RankPlacement>> PlaceAllRanks(
    const LeaderOptions& options, const std::vector<std::int32_t>& agent_cpus) {
  std::vector<plan::NodeInfo> nodes(static_cast<std::size_t>(options.nnodes));
  nodes[0].cpus = AllowedCpus();
  if (options.threads > 0 && static_cast<std::size_t>(options.threads) < nodes[0].cpus.size()) {
    nodes[0].cpus.resize(static_cast<std::size_t>(options.threads));
  }
  for (std::size_t i = 1; i < nodes.size(); ++i) {
    nodes[i].cpus.resize(static_cast<std::size_t>(agent_cpus[i]));
    std::iota(nodes[i].cpus.begin(), nodes[i].cpus.end(), 0);
  }
  return plan::PlaceRanks(options.parallel, nodes, options.allow_cross_host_tp);
}

Result<std::vector<std::string>> DevicesOf(const LeaderOptions& options,
                                           const std::vector<plan::RankPlacement>& places) {
  std::map<std::int32_t, int> used;
  std::vector<std::string> devices;
  for (const plan::RankPlacement& place : places) {
    INFERD_ASSIGN(std::string device, spec::DeviceOfRank(options.device, used[place.node]++));
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace inferd::leader
