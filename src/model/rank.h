// SPDX-License-Identifier: Apache-2.0
// Rank: one device's part of a replica, from files to sampled tokens. The worker room feeds it step
// plans and sends back what it answers; everything that persists between steps (weights, KV pages,
// rows) lives here.
#pragma once

#include "comm/communicator.h"
#include "inferd/result.h"
#include "ops/tasks.h"
#include "spec/step.h"
#include "spec/token_mask.h"
#include "spec/worker_config.h"
#include "tensor/device_queue.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace inferd::model {

/// Communicators of one generation, as spec::JoinRequest describes them; null where the group has
/// one rank or this rank is not a member. `ids` carries sampled tokens from the sampler (its rank
/// 0) to the first-stage ranks of the group.
struct RankComms {
  std::unique_ptr<comm::Communicator> tp, ep, pp, ids;
  std::int64_t step_deadline_ms = 30'000;  // how long a sampler waits for a mask
};

/// Bytes this rank really holds; the planned ones are in spec::MemoryLedger.
struct RankMemory {
  std::int64_t weight_bytes = 0;      // packed, plus norms and biases
  std::int64_t activation_bytes = 0;  // arena, logits, rope tables
  std::int64_t kv_bytes = 0;          // reserved; touched as pages come into use
};

/// Called while loading, from one thread at a time: bytes of this rank's slices packed so far, and
/// in all.
using LoadProgress = std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)>;

/// Owner: the worker. One thread calls Join and Run; Abort may come from any thread. A failed Run
/// leaves rows and KV undefined and the communicators broken: the next call must be Join with new
/// ones. Weights stay.
class Rank {
 public:
  /// Opens the model, makes the device, packs the slices of request.shard. Refuses what does not
  /// fit together, naming the tensor or the setting.
  static Result<std::unique_ptr<Rank>> Load(const spec::LoadRequest& request,
                                            const LoadProgress& progress);
  virtual ~Rank() = default;

  /// A new generation: takes the communicators, forgets all rows and KV. Collective over tp and ep.
  virtual Result<> Join(std::uint64_t generation, RankComms comms) = 0;
  /// The whole life of one step on this rank. Steps must come in order. A value only on sampler
  /// ranks. Errors: kInvalidArgument or kFailedPrecondition for a plan this rank cannot obey, and
  /// the communicators' errors.
  virtual Result<std::optional<spec::StepResult>> Run(const spec::StepPlan& plan) = 0;
  /// Thread-safe: the tokens that a constrained row may take. Masks of other generations than the
  /// last Join's are dropped.
  virtual void GiveMask(spec::TokenMask mask) = 0;
  /// Gives back what the next Join can make anew, the KV cache; Join comes before the next Run.
  /// Does nothing where little is held.
  virtual void ReleaseMemory() {}
  /// Thread-safe, idempotent: a pending Run fails with kAborted.
  virtual void Abort() = 0;

  /// Of the device, for communicators on its own memory; null where that is the host's.
  virtual tensor::DeviceQueue* queue() { return nullptr; }
  /// True when the device has failed for good: the process must end.
  virtual bool broken() const = 0;

  virtual std::int64_t page_tokens() const = 0;
  virtual RankMemory memory() const = 0;
  /// Of this rank's life: CUDA graphs recorded and replayed.
  virtual ops::GraphCounts graph_counts() const { return {}; }
  /// Rows of logits that went from a device's memory to the host's, in all.
  virtual std::int64_t copied_logit_rows() const { return 0; }
  /// Device and shard in one line, for logs.
  virtual std::string Describe() const = 0;
};

}  // namespace inferd::model
