// SPDX-License-Identifier: Apache-2.0
// How a model is cut over ranks, as data: ParallelSpec in, one ShardPlan per rank out. Nobody else
// asks "which slice is mine?".
#pragma once

#include "inferd/result.h"
#include "spec/model_spec.h"

#include <cstdint>
#include <string>
#include <vector>

namespace inferd::spec {

/// Sizes of one replica. A replica has pp * ep * tp ranks; rank = (stage * ep + group) * tp +
/// tp_rank.
struct ParallelSpec {
  int tp = 1;
  int pp = 1;
  int ep = 1;  // expert groups of tp ranks; attention is data-parallel over the groups
  int dp = 1;  // replicas in this server
  bool expert_parallel_in_tp =
      false;  // --enable-expert-parallel: whole experts over the tp ranks of a group
  std::vector<int> pp_partition = {};  // layers per stage; empty: balanced by bytes

  int ranks_per_replica() const { return tp * pp * ep; }
};

/// Half-open range of global indices.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool contains(std::int64_t i) const { return i >= begin && i < end; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// The part of the model one rank holds. All indices are global.
struct ShardPlan {
  int rank = 0;  // within the replica
  int tp = 1, pp = 1, ep = 1;
  int tp_rank = 0, stage = 0, group = 0;
  Range layers;
  bool has_embedding = false;  // first stage
  bool has_head = false;       // last stage: final norm, head, sampling on tp_rank 0
  Range vocab;                 // rows of embedding and head
  Range q_heads;
  Range kv_heads;    // replicated where several ranks need the same one
  Range ffn;         // columns of the dense FFN
  Range experts;     // whole experts held here
  Range expert_ffn;  // columns of each of them
  Range shared_ffn;  // columns of the shared expert

  bool is_sampler() const { return has_head && tp_rank == 0; }
};

/// Smallest cut of each input dimension, from the files; 1 for plain types. Inputs of O and down
/// are cut as activations, whose blocks hold 32 values; those of experts as stored weights, whose
/// blocks may hold more. Filled by store (max over the model's tensors of that kind).
struct CutGranularity {
  std::int64_t attention_out = 1;  // k of the O projection, in values
  std::int64_t ffn = 1;            // k of down
  std::int64_t expert_ffn = 1;
  std::int64_t shared_ffn = 1;
};

/// Pure. Query heads are dealt in GQA order, uneven where they must be; KV heads are replicated
/// when there are fewer than ranks; input cuts fall on block borders. Refuses what cannot be cut,
/// naming the part and the values that work.
Result<std::vector<ShardPlan>> PlanShards(const ModelSpec& model,
                                          const ParallelSpec& parallel,
                                          const CutGranularity& cut);

/// Local KV head of each local query head of a shard, [q_heads.size()].
std::vector<std::int32_t> KvHeadOfQuery(const ModelSpec& model, const ShardPlan& shard);

/// Output rows of the O and down projections that a shard computes. Their inputs are gathered from
/// the tp group, so that every value is one dot product over the whole input dimension: the same
/// bits for any tp.
Range HiddenRows(const ModelSpec& model, const ShardPlan& shard);

}  // namespace inferd::spec
