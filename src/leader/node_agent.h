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
  std::string data_address;                    // this host's address for data between hosts
  std::string worker_binary;                   // empty: the running one
  std::int64_t connect_deadline_ms = 600'000;  // to reach the leader at start
  std::int64_t peer_deadline_ms = 60'000;      // to reach it again after the stream broke
};

/// Runs until the leader shuts the server down (ok), `stop` is set (ok), the leader stays away
/// (kUnavailable) or refuses this host (kFailedPrecondition: another build, kAlreadyExists: its
/// rank is taken, kInvalidArgument: there is no such rank). When the stream breaks, this host's
/// workers are ended and the agent attaches again.
Result<> RunNodeAgent(const NodeAgentOptions& options, const std::atomic<bool>& stop);

}  // namespace inferd::leader
