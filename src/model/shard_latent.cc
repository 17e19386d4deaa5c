// SPDX-License-Identifier: Apache-2.0
// Latent attention (MLA) in its absorbed form: queries go into the latent space, where all heads
// share what is kept of a token, and the sums come out of it. Nothing is made per token and head.
#include "model/shard.h"

#include <array>

namespace inferd::model {

Result<> Shard::LatentAttention(std::int64_t layer, const StepBatch& batch, std::int64_t rows) {
  const auto index = static_cast<std::size_t>(layer);
  const LayerWeights& w = weights_.layers[index];
  const LayerActivations& act = layer_act_[index];
  const spec::LatentSpec& latent = model_.latent;
  const auto eps = static_cast<float>(model_.norm_eps);
  const std::int64_t heads = plan_.q_heads.size();
  const std::int64_t q_size = heads * model_.head_dim;

  INFERD_TRY(BeginBlock(rows, w.attn_norm, act.attn_in));
  const bool has_q_latent = w.q_a != nullptr;
  const std::array tasks = {ops::MatMulTask{w.kv_a.get(), nullptr, latent_, latent.width()},
                            has_q_latent
                                ? ops::MatMulTask{w.q_a.get(), nullptr, q_latent_, latent.q_rank}
                                : ops::MatMulTask{w.q.get(), nullptr, qkv_, q_size}};
  device_.MatMul(*act.attn_in, rows, tasks);
  if (has_q_latent) {
    device_.RmsNorm(q_latent_, w.q_a_norm.data(), eps, rows, latent.q_rank, act.q_latent);
    const ops::MatMulTask q{w.q.get(), nullptr, qkv_, q_size};
    device_.MatMul(*act.q_latent, rows, {&q, 1});
  }
  device_.HeadMatMul({.weight = w.k_up.get(),
                      .heads = heads,
                      .rows = rows,
                      .x = qkv_,
                      .ldx = q_size,
                      .x_head = model_.head_dim,
                      .y = latent_q_,
                      .ldy = heads * latent.width(),
                      .y_head = latent.width()});

  ops::LatentTask post;
  post.kv = latent_;
  post.ldkv = latent.width();
  post.norm = w.kv_a_norm.data();
  post.norm_eps = eps;
  post.q_rope = qkv_ + latent.nope_dim;
  post.ldq_rope = q_size;
  post.q_rope_head = model_.head_dim;
  post.q_heads = heads;
  post.q = latent_q_;
  post.ldq = heads * latent.width();
  post.rope = rope_.table(model_.layers[static_cast<std::size_t>(plan_.layers.begin) + index].rope);
  post.step = {batch.positions, batch.sequences, batch.ids};
  post.layer = kv_.layer(layer);
  device_.LatentPost(post);

  ops::AttentionTask attention;
  attention.q = latent_q_;
  attention.ldq = heads * latent.width();
  attention.q_heads = heads;
  attention.kv_head_of = kv_head_of_;
  attention.sequences = batch.sequences;
  attention.kv = kv_.layer(layer);
  attention.scale = static_cast<float>(model_.attention_scale);
  attention.y = latent_y_;
  attention.ldy = heads * latent.kv_rank;
  device_.Attention(attention);

  device_.HeadMatMul({.weight = w.v_up.get(),
                      .heads = heads,
                      .rows = rows,
                      .x = latent_y_,
                      .ldx = heads * latent.kv_rank,
                      .x_head = latent.kv_rank,
                      .y = attn_,
                      .ldy = heads * latent.value_dim,
                      .y_head = latent.value_dim});
  return {};
}

}  // namespace inferd::model
