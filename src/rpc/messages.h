// SPDX-License-Identifier: Apache-2.0
// The messages of the leader-worker protocol as plain structs; rpc/convert.cc maps them to
// proto/inferd/v1/worker.proto.
#pragma once

#include "inferd/result.h"
#include "spec/step.h"
#include "spec/token_mask.h"
#include "spec/worker_config.h"

#include <cstdint>
#include <string>
#include <variant>

namespace inferd::rpc {

/// First message of a peer.
struct Hello {
  enum class Kind : std::uint8_t { kWorker, kNodeAgent };
  Kind kind = Kind::kWorker;
  std::string build;
  std::uint64_t worker_id = 0;  // workers: as given when spawned; node agents: of their choice
  std::int32_t node_rank = 0;
  std::int64_t pid = 0;
  std::string data_endpoint;
  std::int32_t num_cpus = 0;      // node agents
  std::int64_t memory_bytes = 0;  // node agents
};

struct LoadProgress {
  std::int64_t bytes_done = 0;
  std::int64_t bytes_total = 0;
};

struct Loaded {
  std::int64_t weight_bytes = 0;
  std::int64_t kv_bytes = 0;
  std::string device;
};

struct Joined {
  std::uint64_t generation = 0;
};

/// The worker has left the step it was in and waits for a Join.
struct Idle {
  std::uint64_t generation = 0;
};

struct Fault {
  std::uint64_t generation = 0;
  Code code = Code::kInternal;
  std::string message;
  bool fatal = false;
};

struct WorkerExited {
  std::uint64_t worker_id = 0;
  std::int32_t wait_status = 0;
};

using FromWorker =
    std::variant<Hello, LoadProgress, Loaded, Joined, spec::StepResult, Fault, Idle, WorkerExited>;

struct Abort {
  std::uint64_t generation = 0;
  bool release_memory = false;  // and give back what the next Join can make anew
};
struct Shutdown {};
struct SpawnWorker {
  std::uint64_t worker_id = 0;
};
struct KillWorker {
  std::uint64_t worker_id = 0;
};

using ToWorker = std::variant<spec::LoadRequest,
                              spec::JoinRequest,
                              spec::StepPlan,
                              Abort,
                              Shutdown,
                              SpawnWorker,
                              KillWorker,
                              spec::TokenMask>;

}  // namespace inferd::rpc
