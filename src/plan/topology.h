// SPDX-License-Identifier: Apache-2.0
// Which devices of a host reach each other how fast: the text of `nvidia-smi topo -m` as a link
// matrix, and the domains in which a tensor-parallel group should stay.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::plan {

/// How two devices are connected, best first. kCache: cores that share their last cache.
enum class PathKind : std::uint8_t { kSelf, kNvlink, kCache, kPix, kPxb, kPhb, kNode, kSys };

struct Path {
  PathKind kind = PathKind::kSys;
  int lanes = 0;  // of kNvlink; 0: not said
};

struct TopologyDevice {
  std::string name;       // "GPU0", "NIC0", "core0"
  bool compute = true;    // false: a network card
  std::vector<int> cpus;  // near it; empty: not said
  int numa_node = -1;     // -1: not said
};

struct Topology {
  std::vector<TopologyDevice> devices;
  std::vector<std::vector<Path>> paths;  // [devices][devices], symmetric
  /// Compute devices joined by NVLink, in order; devices without are domains of one. On a host
  /// without NVLink: by NUMA node.
  std::vector<std::vector<int>> domains;
};

/// Reads the output of `nvidia-smi topo -m`. Refuses, naming line and word, what is not a square
/// symmetric matrix of known link names with at most 1024 devices.
Result<Topology> ParseNvidiaTopology(std::string_view what, std::string_view text);
/// Fills `domains` from devices and paths.
void FindDomains(Topology* topology);

std::string PathName(const Path& path);
/// Matrix, domains and what follows from them for --tp; a table and JSON.
std::string DescribeTopology(const Topology& topology);
std::string TopologyJson(const Topology& topology);

}  // namespace inferd::plan
