// SPDX-License-Identifier: Apache-2.0
// The node agent: `inferd --nnodes 2 --node-rank 1 --leader HOST:PORT`. Attaches to the leader,
// starts and ends workers on this host as told, and reports their deaths.
#pragma once

#include "inferd/result.h"

#include <atomic>
#include <cstdint>
#include <string>

namespace inferd::leader {

struct NodeAgentOptions {
  std::string leader;  // host:port
  std::int32_t node_rank = 1;
  std::string secret;
  std::string data_address;   // this host's address for data between hosts
  std::string worker_binary;  // empty: the running one
  /// Keeps trying to reach the leader for this long, at start and after the stream broke.
  std::int64_t connect_deadline_ms = 600'000;
};

/// Runs until the leader shuts the server down (ok), `stop` is set (ok), or the leader stays away
/// (error). When the stream breaks, this host's workers are ended and the agent attaches again.
Result<> RunNodeAgent(const NodeAgentOptions& options, const std::atomic<bool>& stop);

}  // namespace inferd::leader
