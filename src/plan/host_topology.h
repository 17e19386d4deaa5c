// SPDX-License-Identifier: Apache-2.0
// The topology of this host: its GPUs as NVML sees them, else its cores as hwloc does.
#pragma once

#include "inferd/result.h"
#include "plan/topology.h"

namespace inferd::plan {

/// GPUs when the driver's library is there and has some; else cores.
Result<Topology> HostTopology();
/// Cores with their caches and NUMA nodes.
Result<Topology> CoreTopology();

}  // namespace inferd::plan
