// SPDX-License-Identifier: Apache-2.0
// What a worker must know to load its shard and to join its groups; sent by the leader, plain data.
#pragma once

#include "spec/kv_dtype.h"
#include "spec/memory_ledger.h"
#include "spec/parallel.h"

#include <cstdint>
#include <string>
#include <vector>

namespace inferd::spec {

/// How the ranks of a group exchange activations: NCCL on device memory, shared memory or TCP on
/// the host's; kAuto: NCCL where it can serve the group.
enum class CommBackend : std::uint8_t { kAuto, kNccl, kHost };

/// Sent once to each worker: load this.
struct LoadRequest {
  /// A file or folder of the worker's host, or what store::SharedName made.
  std::string model_path;
  ShardPlan shard;
  std::int32_t max_num_seqs = 64;
  std::int32_t max_batched_tokens = 512;
  std::int64_t max_model_len = 0;
  std::int64_t kv_pages = 0;
  KvDtype kv_dtype = KvDtype::kAuto;
  std::string quantization;  // --quantization, as given
  bool bf16_dot = false;     // CPU: BF16 weights meet activations rounded to bf16
  std::string device = "cpu";
  CommBackend comm = CommBackend::kAuto;
  std::vector<std::int32_t> cuda_graph_sizes;  // rows, ascending; empty: no graphs
  bool batch_invariant = false;                // --batch-invariant
  std::int32_t threads = 1;
  std::vector<int> cpus;
};

/// A communicator group of ranks of the replica.
struct GroupConfig {
  std::string id;                      // unique per generation
  std::vector<int> ranks;              // replica ranks in group order
  bool shm = true;                     // all on one host; else tcp
  std::vector<std::string> endpoints;  // tcp data endpoint per group rank
};

/// Sent to every rank when a generation starts: leave the old groups, join these, forget all rows
/// and KV.
struct JoinRequest {
  std::uint64_t generation = 0;
  std::int64_t step_deadline_ms = 30'000;
  GroupConfig tp;  // size 1: not used
  GroupConfig ep;  // ranks with the same (stage, tp_rank); size 1: not used
  GroupConfig pp;  // ranks with the same (group, tp_rank), in stage order; carries activations
  GroupConfig
      ids;  // sampler of the group first, then every first-stage rank of the group that is not it
};

}  // namespace inferd::spec
