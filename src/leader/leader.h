// SPDX-License-Identifier: Apache-2.0
// Leader: the server without its front end. Cuts the model, starts workers, runs one engine per
// replica, and implements InferenceService.
#pragma once

#include "engine/prompt_lookup.h"
#include "inferd/result.h"
#include "leader/inference_service.h"
#include "leader/kv_events.h"
#include "spec/device_choice.h"
#include "spec/memory_ledger.h"
#include "spec/parallel.h"
#include "spec/worker_config.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace inferd::leader {

struct LeaderOptions {
  // The model, as store::OpenModel read it.
  spec::ModelSpec model;
  std::string model_path;
  spec::CutGranularity cut;
  std::int64_t weight_bytes = 0;  // of all tensors that are loaded, as the files have them
  /// Of each shard of a replica, as its device keeps them; empty: its share of weight_bytes.
  std::vector<std::int64_t> shard_weight_bytes;

  spec::ParallelSpec parallel;
  spec::DeviceChoice device;
  std::int32_t max_num_seqs = 64;
  std::int32_t max_num_batched_tokens = 512;
  std::int64_t target_itl_ns = 0;  // see engine::StepPacerOptions
  std::int64_t max_model_len =
      0;  // 0: what the model was trained for, lowered to what the memory holds
  std::int64_t max_waiting = 1024;      // sequences that may queue per replica
  std::int64_t max_waiting_tokens = 0;  // of prompts that may queue per replica; 0: no limit
  std::int64_t max_predicted_wait_ms =
      0;                            // a request that would queue longer is refused; 0: none is
  std::int64_t kv_cache_bytes = 0;  // per host; 0: a quarter of the available memory, at most 4 GiB
  /// Memory of each device that a rank may fill; 0: the host's memory counts. What weights and
  /// activations leave goes to the KV cache, unless kv_cache_bytes says how much.
  std::int64_t device_bytes = 0;
  spec::KvDtype kv_dtype = spec::KvDtype::kAuto;
  spec::CommBackend comm = spec::CommBackend::kAuto;
  std::string quantization;                    // --quantization, for the workers
  bool bf16_dot = false;                       // CPU workers: as spec::LoadRequest::bf16_dot
  bool batch_invariant = false;                // for the workers
  bool enforce_eager = false;                  // no CUDA graphs
  std::vector<std::int64_t> cuda_graph_sizes;  // as spec::CudaGraphSizes takes them
  bool prefix_cache = true;
  std::int32_t num_speculative_tokens = 0;  // of requests that do not say
  engine::PromptLookupOptions prompt_lookup;
  KvEventsOptions kv_events;
  bool enable_sleep_mode = false;
  std::int64_t step_deadline_ms = 30'000;
  std::int64_t recovery_deadline_ms = 300'000;  // as ReplicaOptions::recovery_deadline_ms
  std::int64_t stall_deadline_ms = 0;           // as ReplicaOptions::stall_deadline_ms
  std::int64_t default_queue_deadline_ms = 0;   // 0: none
  std::int32_t threads = 0;  // per host, all ranks; 0: all CPUs this process may use

  // Several hosts.
  std::int32_t nnodes = 1;
  std::string
      control_address;  // "10.0.0.1:7000": where workers of other hosts attach; empty: one host
  std::string data_address;  // this host's address for data between hosts
  std::string secret;        // empty: a random one (one host only)
  bool allow_cross_host_tp = false;
  std::int64_t nodes_deadline_ms = 600'000;  // for the other nodes to join
  std::int64_t peer_deadline_ms = 60'000;    // for a node that was there to come back

  std::string worker_binary;  // empty: the running one
  std::string
      runtime_dir;  // for the control socket; empty: a fresh private folder under $TMPDIR or /tmp
};

/// Thread-safe.
class Leader : public InferenceService {
 public:
  /// Cuts and places the model, starts listening and spawning. Loading goes on in the background:
  /// follow phase() and load_progress(). Refuses at once what cannot work.
  static Result<std::unique_ptr<Leader>> Start(LeaderOptions options);

  /// Waits until ready; the error says why loading failed. `progress` is called about every 100 ms
  /// meanwhile.
  virtual Result<> WaitUntilReady(const std::function<void(const LoadProgress&)>& progress,
                                  const std::function<bool()>& give_up) = 0;
  /// New requests are refused from now on; running ones go on.
  virtual void BeginDrain() = 0;
  /// True when nothing is running or queued.
  virtual bool Idle() const = 0;
  /// Ends workers and threads; requests that still run get an error event.
  virtual void Stop() = 0;

  virtual const spec::MemoryLedger& ledger() const = 0;
  /// The TCP port that workers of other hosts attach to, 0 on one host.
  virtual int control_port() const = 0;
};

}  // namespace inferd::leader
