// SPDX-License-Identifier: Apache-2.0
#include "spec/weight_classes.h"

namespace inferd::spec {
namespace {

// The part of a layer that a shard holds; the whole model is a shard too.
struct LayerSlice {
  std::int64_t q_heads;
  std::int64_t kv_heads;
  std::int64_t ffn;
  std::int64_t experts;
  std::int64_t expert_ffn;
  std::int64_t shared_ffn;
  bool first;  // holds what is added once per group: biases after a row-cut projection
};

LayerSlice WholeLayer(const ModelSpec& model) {
  return {model.num_heads,
          model.num_kv_heads,
          model.intermediate_size,
          model.moe.num_experts,
          model.moe.expert_intermediate_size,
          model.moe.shared_intermediate_size,
          true};
}

LayerSlice SliceOf(const ShardPlan& shard) {
  return {shard.q_heads.size(),
          shard.kv_heads.size(),
          shard.ffn.size(),
          shard.experts.size(),
          shard.expert_ffn.size(),
          shard.shared_ffn.size(),
          shard.tp_rank == 0};
}

// The latents' projections are whole on every rank, those from them to the heads are cut.
void CountLatentAttention(const ModelSpec& model, const LayerSlice& slice, WeightClasses* count) {
  const LatentSpec& latent = model.latent;
  const std::int64_t hidden = model.hidden_size;
  const std::int64_t from = latent.q_rank > 0 ? latent.q_rank : hidden;
  count->attention += hidden * (latent.width() + latent.q_rank);  // both down
  count->attention += slice.q_heads * model.head_dim * from;      // q
  count->attention += slice.q_heads * (latent.nope_dim + latent.value_dim) * latent.kv_rank;
  count->attention += slice.q_heads * latent.value_dim * hidden;  // o
  count->other += 2 * hidden + latent.kv_rank + latent.q_rank;    // norms
}

void CountAttention(const ModelSpec& model, const LayerSlice& slice, WeightClasses* count) {
  if (model.latent.used()) {
    CountLatentAttention(model, slice, count);
    return;
  }
  const std::int64_t q = slice.q_heads * model.head_dim;
  const std::int64_t kv = slice.kv_heads * model.head_dim;
  count->attention += model.hidden_size * (2 * q + 2 * kv);  // q, o, k, v
  count->other += 2 * model.hidden_size;                     // two norms
  count->other += model.qkv_bias ? q + 2 * kv : 0;
  count->other += model.o_bias && slice.first ? model.hidden_size : 0;
  count->other += model.qk_norm ? 2 * model.head_dim : 0;
  count->other += model.attention_sinks ? slice.q_heads : 0;
  count->other += model.sandwich_norm ? 2 * model.hidden_size : 0;
}

void CountFfn(const ModelSpec& model, const LayerSlice& slice, bool moe, WeightClasses* count) {
  const std::int64_t matrices = 3 * model.hidden_size;  // gate, up, down
  if (!moe) {
    count->ffn += matrices * slice.ffn;
    count->other += model.mlp_bias ? 2 * slice.ffn + (slice.first ? model.hidden_size : 0) : 0;
    return;
  }
  count->other += model.moe.num_experts * model.hidden_size;  // router
  count->other += model.moe.choice_bias ? model.moe.num_experts : 0;
  count->experts += slice.experts * matrices * slice.expert_ffn;
  count->ffn += matrices * slice.shared_ffn;
  count->other += model.moe.shared_gate ? model.hidden_size : 0;
}

WeightClasses CountLayer(const ModelSpec& model, const LayerSlice& slice, std::int64_t layer) {
  WeightClasses count;
  CountAttention(model, slice, &count);
  CountFfn(model, slice, model.layers[static_cast<std::size_t>(layer)].moe, &count);
  return count;
}

}  // namespace

WeightClasses LayerWeights(const ModelSpec& model, std::int64_t layer) {
  return CountLayer(model, WholeLayer(model), layer);
}

WeightClasses LayerWeights(const ModelSpec& model, const ShardPlan& shard, std::int64_t layer) {
  return CountLayer(model, SliceOf(shard), layer);
}

WeightClasses ShardWeights(const ModelSpec& model, const ShardPlan& shard) {
  const std::int64_t table = shard.vocab.size() * model.hidden_size;
  const bool shares = model.tied_head && shard.has_embedding;
  WeightClasses sum;
  sum.embedding = shard.has_embedding ? table : 0;
  sum.head = shard.has_head && !shares ? table : 0;
  sum.other = shard.has_head ? model.hidden_size : 0;
  for (std::int64_t layer = shard.layers.begin; layer < shard.layers.end; ++layer) {
    const WeightClasses one = LayerWeights(model, shard, layer);
    sum.attention += one.attention;
    sum.ffn += one.ffn;
    sum.experts += one.experts;
    sum.other += one.other;
  }
  return sum;
}

}  // namespace inferd::spec
