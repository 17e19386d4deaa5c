// SPDX-License-Identifier: Apache-2.0
// One worker process: attaches to the leader, loads its shard, joins its groups, and runs one step
// plan after another.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <string>

namespace inferd::worker {

struct WorkerOptions {
  std::string leader;  // "unix:/path" or "host:port"
  std::uint64_t worker_id = 0;
  std::int32_t node_rank = 0;
  std::string secret;
  /// Address of this host for data connections between hosts; empty: all ranks are on this host.
  std::string data_address;
  std::int64_t connect_deadline_ms = 30'000;  // to reach the leader, who waits as long
};

/// Runs until the leader says so (ok), or until the stream breaks or loading fails (an error).
/// Two threads: the caller's computes; another reads the control stream, so that an abort is seen
/// at once.
Result<> RunWorker(const WorkerOptions& options);

}  // namespace inferd::worker
