// SPDX-License-Identifier: Apache-2.0
#include "store/hf_deepseek.h"

#include "base/error.h"

#include <cmath>
#include <string>

namespace inferd::store {
namespace {

constexpr std::int64_t kMaxLatentSize = std::int64_t{1} << 20;

Result<std::int64_t> Needed(const JsonFields& config, const char* key) {
  INFERD_ASSIGN(const auto given, config.Int(key));
  if (!given || *given <= 0 || *given > kMaxLatentSize) {
    return InvalidArgument("{}: {} is {}; 1 to 2^20 is allowed",
                           config.what(),
                           key,
                           given ? std::to_string(*given) : "absent");
  }
  return *given;
}

Result<> FillChoice(const JsonFields& config, const Family& family, spec::MoeSpec* moe) {
  INFERD_ASSIGN(const std::string method,
                config.StringOr("topk_method", family.choice_bias ? "noaux_tc" : "greedy"));
  if (method != "greedy" && method != "group_limited_greedy" && method != "noaux_tc") {
    return Unimplemented(
        "{}: topk_method is {}; greedy, group_limited_greedy and noaux_tc are supported",
        config.what(),
        method);
  }
  INFERD_ASSIGN(const std::string score,
                config.StringOr("scoring_func", family.choice_bias ? "sigmoid" : "softmax"));
  if (score != "softmax" && score != "sigmoid") {
    return Unimplemented(
        "{}: scoring_func is {}; softmax and sigmoid are supported", config.what(), score);
  }
  moe->score = score == "sigmoid" ? spec::RouterScore::kSigmoid : spec::RouterScore::kSoftmax;
  moe->choice_bias = method == "noaux_tc";
  if (method == "greedy") {
    return {};
  }
  INFERD_ASSIGN(moe->groups, Needed(config, "n_group"));
  INFERD_ASSIGN(moe->top_groups, Needed(config, "topk_group"));
  moe->group_best = method == "noaux_tc" ? 2 : 1;
  return {};
}

}  // namespace

Result<> FillLatent(const JsonFields& config, spec::ModelSpec* spec) {
  spec::LatentSpec& latent = spec->latent;
  INFERD_ASSIGN(latent.kv_rank, Needed(config, "kv_lora_rank"));
  INFERD_ASSIGN(latent.nope_dim, Needed(config, "qk_nope_head_dim"));
  INFERD_ASSIGN(latent.rope_dim, Needed(config, "qk_rope_head_dim"));
  INFERD_ASSIGN(latent.value_dim, Needed(config, "v_head_dim"));
  if (config.Get("q_lora_rank") != nullptr) {  // null: queries come straight from the input
    INFERD_ASSIGN(latent.q_rank, Needed(config, "q_lora_rank"));
  }
  spec->num_kv_heads = 1;
  spec->head_dim = latent.nope_dim + latent.rope_dim;
  INFERD_ASSIGN(spec->rope_interleaved, config.BoolOr("rope_interleave", true));
  return {};
}

void FillLatentScale(spec::ModelSpec* spec) {
  double scale = 1 / std::sqrt(static_cast<double>(spec->head_dim));
  const spec::RopeSpec& rope = spec->ropes.front();
  if (rope.kind == spec::RopeKind::kYarn && rope.mscale_all_dim != 0 && rope.factor > 1) {
    const double mscale = 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1;
    scale *= mscale * mscale;
  }
  spec->attention_scale = scale;
}

Result<> FillDeepseekMoe(const JsonFields& config, const Family& family, spec::ModelSpec* spec) {
  INFERD_ASSIGN(const auto experts, config.Int("n_routed_experts"));
  if (!experts) {
    return {};  // a dense one
  }
  spec::MoeSpec& moe = spec->moe;
  INFERD_ASSIGN(moe.num_experts, Needed(config, "n_routed_experts"));
  INFERD_ASSIGN(moe.top_k, Needed(config, "num_experts_per_tok"));
  INFERD_ASSIGN(moe.expert_intermediate_size, Needed(config, "moe_intermediate_size"));
  INFERD_ASSIGN(const std::int64_t shared, config.IntOr("n_shared_experts", 0));
  if (shared < 0 || shared > kMaxLatentSize) {
    return InvalidArgument("{}: n_shared_experts is {}", config.what(), shared);
  }
  moe.shared_intermediate_size = shared * moe.expert_intermediate_size;
  INFERD_TRY(FillChoice(config, family, &moe));
  INFERD_ASSIGN(moe.renormalize, config.BoolOr("norm_topk_prob", family.choice_bias));
  INFERD_ASSIGN(moe.routed_scale, config.FloatOr("routed_scaling_factor", 1));
  // A single expert is never normalised; V2 scales only what it does not normalise, V3 always
  // (MoEGate of the models' own modeling_deepseek.py).
  moe.renormalize = moe.renormalize && moe.top_k > 1;
  if (moe.renormalize && !moe.choice_bias) {
    moe.routed_scale = 1;
  }
  INFERD_ASSIGN(const std::int64_t dense, config.IntOr("first_k_dense_replace", 0));
  INFERD_ASSIGN(const std::int64_t step, config.IntOr("moe_layer_freq", 1));
  if (dense < 0 || step < 1) {
    return InvalidArgument(
        "{}: first_k_dense_replace is {}, moe_layer_freq {}; 0 or more, and 1 or "
        "more, are allowed",
        config.what(),
        dense,
        step);
  }
  for (std::int64_t i = 0; i < spec->num_layers; ++i) {
    spec->layers[static_cast<std::size_t>(i)].moe = i >= dense && i % step == 0;
  }
  return {};
}

}  // namespace inferd::store
