// SPDX-License-Identifier: Apache-2.0
// One pass of a batch through the layers of a shard. x is the residual stream [rows, hidden]; every
// block computes x += norm?(sum over tp of W_out f(W_in norm(x))).
#include "base/check.h"
#include "base/error.h"
#include "model/shard.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace inferd::model {
namespace {

ops::GateKind GateKindOf(spec::Activation activation) {
  switch (activation) {
    case spec::Activation::kSilu:
      return ops::GateKind::kSilu;
    case spec::Activation::kGeluTanh:
      return ops::GateKind::kGeluTanh;
    case spec::Activation::kGelu:
      return ops::GateKind::kGelu;
  }
  return ops::GateKind::kSilu;
}

}  // namespace

Result<> Shard::Forward(const StepBatch& batch) {
  INFERD_CHECK(batch.rows() <= options_.max_batched_tokens);
  step_ = 1 - step_;
  const auto* const drawn = reinterpret_cast<const std::int32_t*>(drawn_.data());
  const std::int64_t rows = device_.BeginStep({batch.positions, batch.sequences, batch.ids, drawn});
  std::vector<std::int64_t>& num_chosen = outs_[step_].num_chosen;
  for (std::size_t layer = 0; layer < num_chosen.size(); ++layer) {
    const bool kept = IsMoe(static_cast<std::int64_t>(layer)) && !exchange_;
    num_chosen[layer] = kept ? batch.rows() * model_.moe.top_k : 0;
  }
  if (!device_.Replay()) {
    const Result<> done = Layers(batch, rows);
    const bool kept = device_.EndGraph(done.ok());
    INFERD_TRY(done);
    if (!kept && tp_ != nullptr) {
      return Internal(
          "rank {} cannot record a step as its peers do; the next generation goes without "
          "CUDA graphs",
          plan_.rank);
    }
    if (!kept) {
      INFERD_TRY(Layers(batch, rows));
    }
  }
  SendChosen(batch.rows());
  return {};
}

Result<> Shard::Layers(const StepBatch& batch, std::int64_t rows) {
  owed_ = Owed::kNothing;  // of a step that failed
  if (plan_.has_embedding && rows > 0) {
    INFERD_TRY(Embed(batch, rows));
  }
  for (std::int64_t layer = 0; layer < plan_.layers.size(); ++layer) {
    if (rows > 0) {
      INFERD_TRY(Attention(layer, batch, rows));
    }
    INFERD_TRY(Ffn(layer, rows));
  }
  return AddOwed(rows);
}

Result<> Shard::AllReduce(float* data, std::int64_t rows) {
  if (tp_ == nullptr || rows == 0) {
    return {};
  }
  const std::int64_t count = rows * model_.hidden_size;
  if (tp_->device() != nullptr) {
    return gather_->SumOnDevice(data, count);
  }
  INFERD_ASSIGN(float* const host, ToHost(data, count));
  INFERD_TRY(tp_->AllReduceSum({host, static_cast<std::size_t>(count)}));
  FromHost(data, host, count);
  return {};
}

Result<> Shard::Embed(const StepBatch& batch, std::int64_t rows) {
  const EmbeddingRows& table = weights_.embedding;
  device_.Embed(table.table.type,
                table.table.rows,
                table.count,
                table.first_id,
                batch.ids,
                model_.hidden_size,
                static_cast<float>(model_.embedding_scale),
                x_);
  return AllReduce(x_, rows);
}

Result<> Shard::Attention(std::int64_t layer, const StepBatch& batch, std::int64_t rows) {
  const auto index = static_cast<std::size_t>(layer);
  const LayerWeights& w = weights_.layers[index];
  const LayerActivations& act = layer_act_[index];
  const std::int64_t attn_size = plan_.q_heads.size() * model_.value_dim();
  INFERD_TRY(model_.latent.used() ? LatentAttention(layer, batch, rows)
                                  : HeadAttention(layer, batch, rows));
  device_.Quantize(attn_, attn_size, rows, act.attn_part);
  INFERD_TRY(Project(w.o.get(), w.o_bias, act.attn_part, columns_.q, rows, act.attn_out));
  return FinishBlock(rows, gather_ ? Owed::kColumns : Owed::kOutput, w.post_attn_norm);
}

Result<> Shard::HeadAttention(std::int64_t layer, const StepBatch& batch, std::int64_t rows) {
  const auto index = static_cast<std::size_t>(layer);
  const LayerWeights& w = weights_.layers[index];
  const LayerActivations& act = layer_act_[index];
  const spec::LayerSpec& layer_spec =
      model_.layers[static_cast<std::size_t>(plan_.layers.begin) + index];
  const float eps = static_cast<float>(model_.norm_eps);
  const std::int64_t dim = model_.head_dim;
  const std::int64_t q_size = plan_.q_heads.size() * dim;
  const std::int64_t kv_size = plan_.kv_heads.size() * dim;
  const std::int64_t ld = q_size + 2 * kv_size;
  float* k = qkv_ + q_size;
  float* v = k + kv_size;

  INFERD_TRY(BeginBlock(rows, w.attn_norm, act.attn_in));
  const std::array tasks = {ops::MatMulTask{w.q.get(), w.q_bias.data(), qkv_, ld},
                            ops::MatMulTask{w.k.get(), w.k_bias.data(), k, ld},
                            ops::MatMulTask{w.v.get(), w.v_bias.data(), v, ld}};
  device_.MatMul(*act.attn_in, rows, tasks);

  ops::QkvTask post;
  post.q = qkv_;
  post.k = k;
  post.v = v;
  post.ldq = post.ldk = post.ldv = ld;
  post.q_heads = plan_.q_heads.size();
  post.q_norm = w.q_norm.data();
  post.k_norm = w.k_norm.data();
  post.norm_eps = eps;
  post.rope = rope_.table(layer_spec.rope);
  post.step = {batch.positions, batch.sequences, batch.ids};
  post.kv = kv_.layer(layer);
  device_.QkvPost(post);

  ops::AttentionTask attention;
  attention.q = qkv_;
  attention.ldq = ld;
  attention.q_heads = plan_.q_heads.size();
  attention.kv_head_of = kv_head_of_;
  attention.sequences = batch.sequences;
  attention.kv = kv_.layer(layer);
  attention.scale =
      static_cast<float>(model_.attention_scale != 0 ? model_.attention_scale
                                                     : 1 / std::sqrt(static_cast<double>(dim)));
  attention.softcap = static_cast<float>(model_.attention_softcap);
  attention.window = layer_spec.window;
  attention.sinks = w.sinks.data();
  attention.y = attn_;
  attention.ldy = q_size;
  device_.Attention(attention);
  return {};
}

Result<> Shard::Project(const ops::PackedMatrix* weight,
                        const Vector& bias,
                        const ops::Activations* part,
                        std::span<const std::int64_t> columns,
                        std::int64_t rows,
                        ops::Activations* whole) {
  if (gather_) {
    INFERD_TRY(gather_->Gather(*part, columns, rows, whole));
  }
  const ops::MatMulTask task{weight, bias.data(), gather_ ? part_ : y_, hidden_rows_.size()};
  device_.MatMul(*whole, rows, {&task, 1});
  return {};
}

Result<> Shard::FinishBlock(std::int64_t rows, Owed owed, const Vector& post_norm) {
  owed_ = owed;
  if (!post_norm.empty()) {
    INFERD_TRY(ExchangeOwed(rows));
    device_.RmsNormFloat(
        y_, post_norm.data(), static_cast<float>(model_.norm_eps), rows, model_.hidden_size, y_);
  }
  return {};
}

Result<> Shard::ExchangeOwed(std::int64_t rows) {
  const Owed owed = std::exchange(owed_, Owed::kOutput);
  if (owed == Owed::kColumns) {
    return gather_->Gather(part_, columns_.hidden, rows, y_);
  }
  return owed == Owed::kSum ? AllReduce(y_, rows) : Result<>();
}

Result<> Shard::AddOwed(std::int64_t rows) {
  if (owed_ != Owed::kNothing) {
    INFERD_TRY(ExchangeOwed(rows));
    device_.Add(x_, y_, rows, model_.hidden_size);
    owed_ = Owed::kNothing;
  }
  return {};
}

Result<bool> Shard::NormOwed(std::int64_t rows, const Vector& norm, float* normed) {
  if (!gather_ || normed == nullptr || (owed_ != Owed::kSum && owed_ != Owed::kColumns)) {
    return false;
  }
  const tensor::ThenNorm then = {.x = x_,
                                 .weight = norm.data(),
                                 .eps = static_cast<float>(model_.norm_eps),
                                 .k = model_.hidden_size,
                                 .y = normed};
  INFERD_ASSIGN(const bool done,
                owed_ == Owed::kSum ? gather_->SumThenNorm(y_, rows, then)
                                    : gather_->GatherThenNorm(part_, columns_.hidden, rows, then));
  owed_ = done ? Owed::kNothing : owed_;
  return done;
}

Result<> Shard::BeginBlock(std::int64_t rows,
                           const Vector& norm,
                           ops::Activations* act,
                           float* normed) {
  INFERD_CHECK((act != nullptr) != (normed != nullptr));
  INFERD_ASSIGN(const bool done,
                NormOwed(rows, norm, act != nullptr ? act->FloatsToFill() : normed));
  if (done) {
    return {};
  }
  const auto eps = static_cast<float>(model_.norm_eps);
  if (owed_ == Owed::kNothing) {
    if (act != nullptr) {
      device_.RmsNorm(x_, norm.data(), eps, rows, model_.hidden_size, act);
    } else {
      device_.RmsNormFloat(x_, norm.data(), eps, rows, model_.hidden_size, normed);
    }
    return {};
  }
  INFERD_TRY(ExchangeOwed(rows));
  const ops::AddNormTask task = {x_, y_, norm.data(), eps, rows, model_.hidden_size};
  if (act != nullptr) {
    device_.AddRmsNorm(task, act);
  } else {
    device_.AddRmsNormFloat(task, normed);
  }
  owed_ = Owed::kNothing;
  return {};
}

Result<> Shard::Ffn(std::int64_t layer, std::int64_t rows) {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  if (IsMoe(layer)) {
    INFERD_TRY(MoeFfn(layer, rows));
  } else if (rows > 0) {
    INFERD_TRY(DenseFfn(layer, rows));
  }
  if (rows == 0) {
    return {};
  }
  const Owed owed = IsMoe(layer) ? Owed::kSum : gather_ ? Owed::kColumns : Owed::kOutput;
  return FinishBlock(rows, owed, w.post_ffn_norm);
}

Result<> Shard::DenseFfn(std::int64_t layer, std::int64_t rows) {
  const auto index = static_cast<std::size_t>(layer);
  const LayerWeights& w = weights_.layers[index];
  const LayerActivations& act = layer_act_[index];
  const std::int64_t ffn = plan_.ffn.size();
  INFERD_TRY(BeginBlock(rows, w.ffn_norm, act.ffn_in));
  const std::array tasks = {ops::MatMulTask{w.gate.get(), w.gate_bias.data(), gate_up_, 2 * ffn},
                            ops::MatMulTask{w.up.get(), w.up_bias.data(), gate_up_ + ffn, 2 * ffn}};
  device_.GatedMatMul(*act.ffn_in, rows, GateKindOf(model_.activation), tasks, act.ffn_part);
  return Project(w.down.get(), w.down_bias, act.ffn_part, columns_.ffn, rows, act.ffn_mid);
}

// Norm, router, and the first products of the shared expert: all read the same rows.
Result<> Shard::MoeInput(std::int64_t layer, std::int64_t rows) {
  const auto index = static_cast<std::size_t>(layer);
  const LayerWeights& w = weights_.layers[index];
  const LayerActivations& act = layer_act_[index];
  const std::int64_t shared = plan_.shared_ffn.size();
  INFERD_TRY(BeginBlock(rows, w.ffn_norm, nullptr, normed_));
  device_.Quantize(normed_, model_.hidden_size, rows, act.ffn_in);
  std::array<ops::MatMulTask, 4> tasks;
  std::size_t count = 0;
  // Ranks that chose different experts would add up parts of different sums.
  tasks[count++] = {w.router.get(), nullptr, router_, model_.moe.num_experts, plan_.tp > 1};
  if (w.shared_gate != nullptr) {
    tasks[count++] = {w.shared_gate.get(), nullptr, gate_up_, 2 * shared};
    tasks[count++] = {w.shared_up.get(), nullptr, gate_up_ + shared, 2 * shared};
  }
  if (w.shared_expert_gate != nullptr) {
    tasks[count++] = {w.shared_expert_gate.get(), nullptr, shared_weight_, 1};
  }
  device_.MatMul(*act.ffn_in, rows, std::span(tasks).first(count));
  ops::RouteTask route;
  route.logits = router_;
  route.rows = rows;
  route.experts = model_.moe.num_experts;
  route.top_k = model_.moe.top_k;
  route.sigmoid = model_.moe.score == spec::RouterScore::kSigmoid;
  route.softmax_before_topk = model_.moe.softmax_before_topk;
  route.renormalize = model_.moe.renormalize;
  route.routed_scale = static_cast<float>(model_.moe.routed_scale);
  route.bias = w.router_bias.data();
  route.groups = model_.moe.groups;
  route.top_groups = model_.moe.top_groups;
  route.group_best = model_.moe.group_best;
  route.expert = reinterpret_cast<std::int32_t*>(expert_.data());
  route.weight = expert_weight_.floats();
  device_.Route(route);
  return {};
}

Result<> Shard::MoeFfn(std::int64_t layer, std::int64_t rows) {
  const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
  if (rows > 0) {
    INFERD_TRY(MoeInput(layer, rows));
  }
  ops::MoeTask task = MoeTaskOf(w);
  task.x = normed_;
  task.rows = rows;
  task.expert = reinterpret_cast<const std::int32_t*>(expert_.data());
  task.weight = expert_weight_.floats();
  task.y = y_;
  if (exchange_) {
    INFERD_ASSIGN(const ExpertExchange::Arrived arrived,
                  exchange_->Send(normed_, rows, task.expert, task.weight));
    CountExperts(arrived.host_expert, arrived.rows * model_.moe.top_k);
    task.x = arrived.x;
    task.rows = arrived.rows;
    task.expert = arrived.expert;
    task.weight = arrived.weight;
    task.y = arrived.y;
    LocalExperts(task);
    INFERD_TRY(exchange_->Return(y_, rows));
  } else {
    KeepChosen(layer, rows * model_.moe.top_k);
    LocalExperts(task);
  }
  if (rows > 0 && w.shared_down != nullptr) {
    AddSharedExpert(layer, rows);
  }
  return {};
}

ops::MoeTask Shard::MoeTaskOf(const LayerWeights& weights) const {
  ops::MoeTask task;
  task.gate = weights.expert_gate;
  task.up = weights.expert_up;
  task.down = weights.expert_down;
  task.first_expert = plan_.experts.begin;
  task.top_k = model_.moe.top_k;
  task.gate_kind = GateKindOf(model_.activation);
  return task;
}

void Shard::LocalExperts(const ops::MoeTask& task) {
  if (task.rows == 0) {
    return;
  }
  if (task.gate.empty() || task.gate.front() == nullptr) {
    device_.Zero(task.y, static_cast<std::size_t>(task.rows * model_.hidden_size) * sizeof(float));
    return;
  }
  device_.Moe(task);
}

void Shard::KeepChosen(std::int64_t layer, std::int64_t count) {
  if (device_.SharesHostMemory()) {
    CountExperts(reinterpret_cast<const std::int32_t*>(expert_.data()), count);
    return;
  }
  const std::int64_t place = layer * options_.max_batched_tokens * model_.moe.top_k;
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(std::int32_t);
  device_.Copy(chosen_.floats() + place, expert_.data(), bytes);
}

void Shard::SendChosen(std::int64_t rows) {
  if (chosen_.data() == nullptr || exchange_) {
    return;
  }
  const std::size_t row_bytes = static_cast<std::size_t>(model_.moe.top_k) * sizeof(std::int32_t);
  const std::size_t layer_bytes = static_cast<std::size_t>(options_.max_batched_tokens) * row_bytes;
  device_.CopyRows(outs_[step_].chosen.data(),
                   layer_bytes,
                   chosen_.data(),
                   layer_bytes,
                   static_cast<std::size_t>(rows) * row_bytes,
                   plan_.layers.size());
}

void Shard::AddSharedExpert(std::int64_t layer, std::int64_t rows) {
  const auto index = static_cast<std::size_t>(layer);
  const LayerWeights& w = weights_.layers[index];
  const LayerActivations& act = layer_act_[index];
  const std::int64_t hidden = model_.hidden_size;
  const std::int64_t shared = plan_.shared_ffn.size();
  device_.GateMul(GateKindOf(model_.activation),
                  gate_up_,
                  gate_up_ + shared,
                  2 * shared,
                  rows,
                  shared,
                  act.shared_mid);
  const ops::MatMulTask down{w.shared_down.get(), nullptr, shared_y_, hidden};
  device_.MatMul(*act.shared_mid, rows, {&down, 1});
  const float* const gate = w.shared_expert_gate != nullptr ? shared_weight_ : nullptr;
  device_.AddGated(y_, shared_y_, gate, rows, hidden);
}

}  // namespace inferd::model
