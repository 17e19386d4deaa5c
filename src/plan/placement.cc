// SPDX-License-Identifier: Apache-2.0
#include "plan/placement.h"

#include "base/error.h"

#include <algorithm>

namespace inferd::plan {

Result<std::vector<RankPlacement>> PlaceRanks(const spec::ParallelSpec& parallel,
                                              const std::vector<NodeInfo>& nodes,
                                              bool allow_cross_host_tp) {
  const int num_nodes = static_cast<int>(nodes.size());
  const int num_ranks = parallel.dp * parallel.ranks_per_replica();
  const int num_groups = num_ranks / parallel.tp;
  const bool split_groups = num_groups < num_nodes;
  if (split_groups && !allow_cross_host_tp) {
    return InvalidArgument(
        "{} tensor-parallel group(s) of {} cannot use {} hosts without splitting one over hosts, "
        "which is slow; use --pp "
        "or --ep or --dp so that there are at least {} groups, or --allow-cross-host-tp",
        num_groups,
        parallel.tp,
        num_nodes,
        num_nodes);
  }
  if (num_ranks < num_nodes) {
    return InvalidArgument(
        "{} rank(s) cannot be spread over {} hosts; start fewer nodes", num_ranks, num_nodes);
  }
  std::vector<RankPlacement> places(static_cast<std::size_t>(num_ranks));
  std::vector<int> on_node(nodes.size(), 0);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const int node =
        split_groups ? rank * num_nodes / num_ranks : (rank / parallel.tp) * num_nodes / num_groups;
    places[static_cast<std::size_t>(rank)].node = node;
    ++on_node[static_cast<std::size_t>(node)];
  }
  std::vector<int> dealt(nodes.size(), 0);
  for (RankPlacement& place : places) {
    const auto node = static_cast<std::size_t>(place.node);
    const std::vector<int>& cpus = nodes[node].cpus;
    const int count = static_cast<int>(cpus.size());
    const int begin = dealt[node] * count / on_node[node];
    const int end = (dealt[node] + 1) * count / on_node[node];
    ++dealt[node];
    place.threads = std::max(1, end - begin);
    if (count >= on_node[node]) {
      place.cpus.assign(cpus.begin() + begin, cpus.begin() + end);
    }
  }
  return places;
}

}  // namespace inferd::plan
