// SPDX-License-Identifier: Apache-2.0
// How long a step takes: pure functions of a device profile, a shard and the work of the step. The
// formulas and how far they are from published figures: docs/planning.md.
#pragma once

#include "cost/device_profile.h"
#include "inferd/result.h"
#include "spec/memory_ledger.h"
#include "spec/model_spec.h"
#include "spec/parallel.h"
#include "spec/step.h"

#include <cstdint>
#include <span>
#include <vector>

namespace inferd::cost {

/// How ranks reach each other. Tensor-parallel peers may sit in one domain, on one host without
/// one, or on several hosts.
enum class Reach : std::uint8_t { kDomain, kHost, kNetwork };

struct ReplicaLinks {
  Reach tp = Reach::kDomain;
  Reach ep = Reach::kDomain;
  Reach pp = Reach::kDomain;  // between neighbouring stages
};

/// What one rank of a stage does per token, from its shard.
struct StageCost {
  // Bytes of weights that every step reads, and of one expert held here.
  double dense_bytes = 0;
  double expert_bytes = 0;
  double experts_held = 0;     // over the MoE layers together
  double expert_share = 0;     // chance that a token takes a given expert
  double dense_flops = 0;      // per token, all but the head's
  double expert_flops = 0;     // per token, those of the experts it takes here on average
  double head_flops = 0;       // per row of logits
  double kv_bytes = 0;         // per token of context, layers that see all of it
  double attention_flops = 0;  // per pair of query and key, the same layers
  double window_kv_bytes = 0;  // layers with a window
  double window_attention_flops = 0;
  double window = 0;       // their window; 0: there are none
  double flops_per_s = 0;  // peak for the type of the weights
  // Messages of a step: `reductions` of `hidden_bytes` per token over the tp group, a gather of
  // `logit_bytes` per row, `exchanges` of `exchange_bytes` per token over the ep group, and
  // `hidden_bytes` per token to the next stage.
  int tp = 1, ep = 1;
  double reductions = 0;
  double exchanges = 0;
  double hidden_bytes = 0;
  double exchange_bytes = 0;
  double logit_bytes = 0;
  bool has_next = false;
};

/// The work of a step on one stage, summed over its rows.
struct StepWork {
  double tokens = 0;           // positions run
  double rows = 0;             // sequences that take part
  double logit_rows = 0;       // positions that need logits
  double kv_bytes = 0;         // read by decoding rows, and prior context of chunks
  double attention_flops = 0;  // of chunks
};

/// Times in seconds; `total` is what the stage needs.
struct StepTime {
  double weights = 0;   // reading them, if that is longer than multiplying
  double matrices = 0;  // multiplying, if that is longer than reading
  double kv = 0;
  double attention = 0;
  double collectives = 0;  // tp reductions, logits gather, ep exchanges
  double overhead = 0;
  double total = 0;
  double handover = 0;  // to the next stage; beside `total`
};

/// One StageCost per stage (of the heaviest rank of each), from the shards of a replica.
/// `bytes_per_weight` as in the ledger.
std::vector<StageCost> MakeStages(const spec::ModelSpec& model,
                                  const std::vector<spec::ShardPlan>& shards,
                                  double bytes_per_weight,
                                  double kv_bytes_per_value,
                                  const DeviceProfile& device);

/// Adds positions [start, start + count) of a sequence; `sample`: its last position needs logits.
void AddWork(
    const StageCost& stage, std::int64_t start, std::int64_t count, bool sample, StepWork* work);
/// The work of a plan's rows that belong to `group`.
StepWork WorkOf(const StageCost& stage, const spec::StepPlan& plan, std::int32_t group);

StepTime TimeOf(const StageCost& stage,
                const StepWork& work,
                const DeviceProfile& device,
                const ReplicaLinks& links);

/// Reduction of `bytes` over `ranks` and what is like it. Two-shot: every byte crosses the link
/// twice but for the own share.
double AllReduceSeconds(const DeviceProfile& device, Reach reach, int ranks, double bytes);
double AllToAllSeconds(const DeviceProfile& device, Reach reach, int ranks, double bytes);

/// Peak FLOPs for weights of that many bytes: 16-bit ones, 8-bit ones where the device multiplies
/// them, narrower ones widened unless it has them.
double PeakFlops(const DeviceProfile& device, double bytes_per_weight);

}  // namespace inferd::cost
