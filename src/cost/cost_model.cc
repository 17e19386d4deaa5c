// SPDX-License-Identifier: Apache-2.0
#include "cost/cost_model.h"

#include "spec/weight_classes.h"

#include <algorithm>
#include <cmath>

namespace inferd::cost {
namespace {

constexpr double kActivationBytes = 2;  // a value between ranks is 16 bits wide

const Link& LinkOf(const DeviceProfile& device, Reach reach) {
  const bool has_peer = device.peer.bytes_per_s > 0 && device.domain_devices > 1;
  if (reach == Reach::kDomain && has_peer) {
    return device.peer;
  }
  if (reach != Reach::kNetwork && device.host.bytes_per_s > 0) {
    return device.host;
  }
  return device.network;
}

/// Expected number of different experts that `tokens` take of `held`, each with chance `share`.
double ExpertsTouched(double held, double share, double tokens) {
  return held * (1 - std::pow(1 - share, tokens));
}

StageCost MakeStage(const spec::ModelSpec& model,
                    const spec::ShardPlan& shard,
                    double bytes_per_weight,
                    double kv_bytes_per_value,
                    const DeviceProfile& device) {
  const spec::WeightClasses weights = spec::ShardWeights(model, shard);
  StageCost stage;
  const auto wide = [](std::int64_t value) { return static_cast<double>(value); };
  const double head = shard.has_head ? wide(shard.vocab.size() * model.hidden_size) : 0;
  // The embedding's rows are looked up, not read whole. A quantised model keeps its head at the
  // files' average like the rest.
  const double dense = wide(weights.attention + weights.ffn + weights.other);
  stage.dense_bytes = (dense + head) * bytes_per_weight;
  stage.dense_flops = 2 * dense;
  stage.head_flops = 2 * head;
  double moe_layers = 0;
  for (std::int64_t layer = shard.layers.begin; layer < shard.layers.end; ++layer) {
    const spec::LayerSpec& of = model.layers[static_cast<std::size_t>(layer)];
    moe_layers += of.moe ? 1 : 0;
    const double kv = wide(model.KvValues(shard.kv_heads.size())) * kv_bytes_per_value;
    // Of a token seen: the product with K, the sum of V; over a latent both are as wide as that.
    const std::int64_t values =
        model.latent.used() ? model.latent.width() + model.latent.kv_rank : 2 * model.head_dim;
    const double flops = 2 * wide(shard.q_heads.size() * values);
    if (of.window > 0) {
      stage.window = std::max(stage.window, wide(of.window));
      stage.window_kv_bytes += kv;
      stage.window_attention_flops += flops;
    } else {
      stage.kv_bytes += kv;
      stage.attention_flops += flops;
    }
  }
  if (moe_layers > 0) {
    const double held = wide(shard.experts.size());
    stage.experts_held = held * moe_layers;
    stage.expert_share = wide(model.moe.top_k) / wide(model.moe.num_experts);
    stage.expert_bytes =
        held > 0 ? wide(weights.experts) * bytes_per_weight / stage.experts_held : 0;
    // Tokens of all expert groups come here in equal parts: each rank multiplies what its own
    // tokens would need, were all experts on it, shared by the tp ranks.
    stage.expert_flops = 2 * 3 * wide(model.hidden_size * shard.expert_ffn.size()) *
                         wide(model.moe.top_k) * moe_layers * held * shard.ep /
                         wide(model.moe.num_experts);
  }
  stage.flops_per_s = PeakFlops(device, bytes_per_weight);
  stage.tp = shard.tp;
  stage.ep = shard.ep;
  stage.reductions = shard.tp > 1 ? 2 * wide(shard.layers.size()) : 0;
  stage.exchanges = shard.ep > 1 ? 2 * moe_layers : 0;
  stage.hidden_bytes = wide(model.hidden_size) * kActivationBytes;
  stage.exchange_bytes = stage.hidden_bytes * wide(std::max<std::int64_t>(model.moe.top_k, 1));
  stage.logit_bytes = shard.has_head && shard.tp > 1 ? wide(model.vocab_size) * 4 : 0;
  stage.has_next = !shard.has_head;
  return stage;
}

double Weight(const StageCost& stage) {
  return stage.dense_bytes + stage.experts_held * stage.expert_bytes + stage.kv_bytes;
}

}  // namespace

double PeakFlops(const DeviceProfile& device, double bytes_per_weight) {
  constexpr double kOver8Bit = 1.5;  // bytes a weight: wider than 8-bit formats with their scales
  constexpr double kUnder8Bit = 0.9;
  const bool eight = device.flops_8bit > 0 && bytes_per_weight <= kOver8Bit &&
                     (bytes_per_weight >= kUnder8Bit || device.native_4bit);
  return eight ? device.flops_8bit : device.flops_16bit;
}

std::vector<StageCost> MakeStages(const spec::ModelSpec& model,
                                  const std::vector<spec::ShardPlan>& shards,
                                  double bytes_per_weight,
                                  double kv_bytes_per_value,
                                  const DeviceProfile& device) {
  std::vector<StageCost> stages;
  for (const spec::ShardPlan& shard : shards) {
    StageCost cost = MakeStage(model, shard, bytes_per_weight, kv_bytes_per_value, device);
    const auto stage = static_cast<std::size_t>(shard.stage);
    if (stage >= stages.size()) {
      stages.push_back(cost);
    } else if (Weight(cost) > Weight(stages[stage])) {
      stages[stage] = cost;
    }
  }
  return stages;
}

void AddWork(
    const StageCost& stage, std::int64_t start, std::int64_t count, bool sample, StepWork* work) {
  const auto first = static_cast<double>(start);
  const auto n = static_cast<double>(count);
  work->tokens += n;
  work->rows += 1;
  work->logit_rows += sample ? 1 : 0;
  if (count == 1) {
    work->kv_bytes += stage.kv_bytes * (first + 1);
    if (stage.window > 0) {
      work->kv_bytes += stage.window_kv_bytes * std::min(first + 1, stage.window);
    }
    return;
  }
  // Pairs of query and key under a causal mask; the context before the chunk is read once.
  work->kv_bytes += stage.kv_bytes * first;
  work->attention_flops += stage.attention_flops * n * (first + (n + 1) / 2);
  if (stage.window > 0) {
    work->kv_bytes += stage.window_kv_bytes * std::min(first, stage.window);
    work->attention_flops +=
        stage.window_attention_flops * n * std::min(first + (n + 1) / 2, stage.window);
  }
}

StepWork WorkOf(const StageCost& stage, const spec::StepPlan& plan, std::int32_t group) {
  StepWork work;
  for (const spec::RowWork& row : plan.work) {
    if (row.group == group) {
      AddWork(stage, row.start, row.count, row.sample, &work);
    }
  }
  return work;
}

double AllReduceSeconds(const DeviceProfile& device, Reach reach, int ranks, double bytes) {
  if (ranks < 2) {
    return 0;
  }
  const Link& link = LinkOf(device, reach);
  const double share = static_cast<double>(ranks - 1) / ranks;
  return 2 * link.latency_s + 2 * share * bytes / (link.bytes_per_s * device.efficiency.link);
}

double AllToAllSeconds(const DeviceProfile& device, Reach reach, int ranks, double bytes) {
  if (ranks < 2) {
    return 0;
  }
  const Link& link = LinkOf(device, reach);
  const double share = static_cast<double>(ranks - 1) / ranks;
  // Messages to all peers are under way together; their starts are not.
  return link.latency_s * (1 + 0.1 * ranks) +
         share * bytes / (link.bytes_per_s * device.efficiency.link);
}

StepTime TimeOf(const StageCost& stage,
                const StepWork& work,
                const DeviceProfile& device,
                const ReplicaLinks& links) {
  StepTime time;
  if (work.tokens <= 0) {
    return time;
  }
  const Efficiency& efficiency = device.efficiency;
  // Experts here are asked for by the tokens of all groups.
  const double touched =
      ExpertsTouched(stage.experts_held, stage.expert_share, work.tokens * stage.ep);
  const double read =
      (stage.dense_bytes + touched * stage.expert_bytes) / (device.bandwidth * efficiency.weights);
  const double multiply = (work.tokens * (stage.dense_flops + stage.expert_flops) +
                           work.logit_rows * stage.head_flops) /
                          (stage.flops_per_s * efficiency.flops);
  time.weights = read >= multiply ? read : 0;
  time.matrices = read >= multiply ? 0 : multiply;
  time.kv = work.kv_bytes / (device.bandwidth * efficiency.kv);
  time.attention = work.attention_flops / (device.flops_16bit * efficiency.attention);
  time.collectives =
      stage.reductions *
          AllReduceSeconds(device, links.tp, stage.tp, work.tokens * stage.hidden_bytes) +
      stage.exchanges *
          AllToAllSeconds(device, links.ep, stage.ep, work.tokens * stage.exchange_bytes);
  if (stage.logit_bytes > 0) {
    time.collectives +=
        AllToAllSeconds(device, links.tp, stage.tp, work.logit_rows * stage.logit_bytes);
  }
  time.overhead = efficiency.step_s + efficiency.row_s * work.rows;
  time.total =
      time.weights + time.matrices + time.kv + time.attention + time.collectives + time.overhead;
  if (stage.has_next) {
    const Link& link = LinkOf(device, links.pp);
    time.handover =
        link.latency_s + work.tokens * stage.hidden_bytes / (link.bytes_per_s * efficiency.link);
  }
  return time;
}

}  // namespace inferd::cost
