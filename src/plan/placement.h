// SPDX-License-Identifier: Apache-2.0
// Which host each rank runs on, and which of its CPUs. Pure.
#pragma once

#include "inferd/result.h"
#include "spec/parallel.h"

#include <cstdint>
#include <vector>

namespace inferd::plan {

struct NodeInfo {
  std::vector<int> cpus;  // ids usable by workers
};

struct RankPlacement {
  std::int32_t node = 0;
  std::int32_t threads = 1;
  std::vector<int> cpus;  // empty: not pinned (more ranks than CPUs)
};

/// Placement of replica r's rank k at index r * ranks_per_replica + k. Tensor-parallel groups stay
/// on one host; stages and expert groups spread over hosts in order, and so do replicas. A TP group
/// is split over hosts only with allow_cross_host_tp. CPUs of a host are dealt evenly to its ranks.
Result<std::vector<RankPlacement>> PlaceRanks(const spec::ParallelSpec& parallel,
                                              const std::vector<NodeInfo>& nodes,
                                              bool allow_cross_host_tp);

}  // namespace inferd::plan
