// SPDX-License-Identifier: Apache-2.0
// What this host offers: CPUs this process may run on, memory it may take.
#pragma once

#include <cstdint>
#include <vector>

namespace inferd::leader {

/// Ids of the CPUs in this process's affinity mask.
std::vector<int> AllowedCpus();

/// MemAvailable of /proc/meminfo, lowered to what the cgroup still allows.
std::int64_t AvailableMemoryBytes();

}  // namespace inferd::leader
