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
  /// How long a sampler waits for a mask, and the device for its end where no group guards it.
  std::int64_t step_deadline_ms = 30'000;
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

/// Owner: the worker. One thread calls Join, Begin and Finish; Abort may come from any thread. A
/// failed Begin or Finish leaves rows and KV undefined, the communicators broken and no step under
/// way: the next call must be Join with new ones. Weights stay.
class Rank {
 public:
  /// Opens the model, makes the device, packs the slices of request.shard. Refuses what does not
  /// fit together, naming the tensor or the setting.
  static Result<std::unique_ptr<Rank>> Load(const spec::LoadRequest& request,
                                            const LoadProgress& progress);
  virtual ~Rank() = default;

  /// A new generation: takes the communicators, forgets all rows, KV and steps under way.
  /// Collective over tp and ep.
  virtual Result<> Join(std::uint64_t generation, RankComms comms) = 0;
  /// The first half of a step. Steps must come in order, and MayBegin be true. Where the device
  /// can be given the whole step it is, and this returns; else the step is done when this returns.
  /// Errors: kInvalidArgument or kFailedPrecondition for a plan this rank cannot obey, and the
  /// communicators' errors.
  virtual Result<> Begin(const spec::StepPlan& plan) = 0;
  /// True: Begin(plan) need not come after the Finish of what is under way. One step may begin
  /// before the one before it is done when nothing of it depends on a token that only the device
  /// knows, but for the inputs.
  virtual bool MayBegin(const spec::StepPlan& plan) const = 0;
  /// The second half of the oldest step under way: waits for it and no more. A value only on
  /// sampler ranks. Errors: the communicators' and the device's.
  virtual Result<std::optional<spec::StepResult>> Finish() = 0;
  /// Steps begun and not finished.
  virtual std::size_t num_under_way() const = 0;
  /// True: Finish will not wait, if only because it fails. Looks after the communicators as a wait
  /// would.
  virtual bool IsDone() = 0;
  /// Thread-safe: the tokens that a constrained row may take. Masks of other generations than the
  /// last Join's are dropped.
  virtual void GiveMask(spec::TokenMask mask) = 0;
  /// Forgets what is under way, once the device has left it. Join comes before the next Begin.
  virtual void Drop() {}
  /// Gives back what the next Join can make anew, the KV cache; Join comes before the next Begin.
  /// Does nothing where little is held.
  virtual void ReleaseMemory() {}
  /// Thread-safe, idempotent: a pending Begin or Finish fails with kAborted, where it waits for
  /// others.
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
