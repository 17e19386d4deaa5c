// SPDX-License-Identifier: Apache-2.0
#include "spec/model_spec.h"

#include "base/error.h"

#include <cmath>

namespace inferd::spec {
namespace {

struct Named {
  const char* name;
  std::int64_t value;
};

Result<> ValidateMoe(const ModelSpec& model) {
  const MoeSpec& moe = model.moe;
  if (moe.num_experts < 0 || moe.shared_intermediate_size < 0) {
    return InvalidArgument("the model has {} experts and a shared expert of {} columns",
                           moe.num_experts,
                           moe.shared_intermediate_size);
  }
  if (moe.num_experts > 0 && (moe.top_k <= 0 || moe.top_k > moe.num_experts)) {
    return InvalidArgument("a token would go to {} of {} experts; 1 to {} are possible",
                           moe.top_k,
                           moe.num_experts,
                           moe.num_experts);
  }
  if (moe.num_experts > 0 && moe.expert_intermediate_size <= 0) {
    return InvalidArgument("experts have {} columns; at least 1 is needed",
                           moe.expert_intermediate_size);
  }
  if (moe.num_experts > 0 &&
      (moe.groups < 1 || moe.groups > 32 || moe.num_experts % moe.groups != 0 ||
       moe.top_groups < 1 || moe.top_groups > moe.groups ||
       moe.num_experts / moe.groups * moe.top_groups < moe.top_k)) {
    return InvalidArgument(
        "a token would go to {} experts of {} of the {} groups of {}; that cannot be",
        moe.top_k,
        moe.top_groups,
        moe.groups,
        moe.num_experts);
  }
  return {};
}

Result<> ValidateLatent(const ModelSpec& model) {
  const LatentSpec& latent = model.latent;
  constexpr std::int64_t kUnit = 32;  // rows of a panel of weights
  if (latent.kv_rank <= 0 || latent.kv_rank % kUnit != 0 || latent.kv_rank > 512 ||
      latent.value_dim <= 0 || latent.value_dim % kUnit != 0) {
    return Unimplemented(
        "latent attention with a rank of {} and {} values a head: both must be multiples of {}, "
        "the "
        "rank at most 512",
        latent.kv_rank,
        latent.value_dim,
        kUnit);
  }
  if (latent.nope_dim <= 0 || latent.rope_dim <= 0 || latent.rope_dim % 2 != 0 ||
      latent.rope_dim > 128 || latent.q_rank < 0) {
    return Unimplemented(
        "latent attention with keys of {} + {} values and queries of rank {}: 1 or more, and an "
        "even "
        "number up to 128 that rotates, are possible",
        latent.nope_dim,
        latent.rope_dim,
        latent.q_rank);
  }
  if (model.num_kv_heads != 1 || model.head_dim != latent.nope_dim + latent.rope_dim) {
    return InvalidArgument("latent attention has one KV head, not {}, of {} values, not {}",
                           model.num_kv_heads,
                           latent.nope_dim + latent.rope_dim,
                           model.head_dim);
  }
  if (model.qk_norm || model.qkv_bias || model.o_bias || model.attention_sinks ||
      model.attention_softcap != 0) {
    return Unimplemented("latent attention with biases, norms of heads, sinks or a softcap");
  }
  for (const LayerSpec& layer : model.layers) {
    if (layer.window > 0) {
      return Unimplemented("latent attention with a window");
    }
  }
  for (const RopeSpec& rope : model.ropes) {
    if (rope.rotary_dim != latent.rope_dim) {
      return Unimplemented("latent attention that rotates {} of the {} values of its key",
                           rope.rotary_dim,
                           latent.rope_dim);
    }
  }
  if (!std::isfinite(model.attention_scale) || model.attention_scale < 0) {
    return InvalidArgument("latent attention with a scale of {}", model.attention_scale);
  }
  return {};
}

Result<> ValidateLayers(const ModelSpec& model) {
  if (model.layers.size() != static_cast<std::size_t>(model.num_layers)) {
    return InvalidArgument(
        "{} layers are described, but the model has {}", model.layers.size(), model.num_layers);
  }
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const LayerSpec& layer = model.layers[i];
    if (layer.window < 0) {
      return InvalidArgument("layer {} has a window of {} tokens", i, layer.window);
    }
    if (layer.rope < 0 || static_cast<std::size_t>(layer.rope) >= model.ropes.size()) {
      return InvalidArgument("layer {} names rope {} of {}", i, layer.rope, model.ropes.size());
    }
    if (layer.moe && model.moe.num_experts == 0) {
      return InvalidArgument("layer {} has experts, but the model has none", i);
    }
  }
  return {};
}

Result<> ValidateRopes(const ModelSpec& model) {
  for (const RopeSpec& rope : model.ropes) {
    if (rope.kind == RopeKind::kNone) {
      continue;
    }
    if (rope.rotary_dim <= 0 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > model.head_dim) {
      return InvalidArgument(
          "{} of {} dimensions of a head would be rotated; an even number is needed",
          rope.rotary_dim,
          model.head_dim);
    }
    if (!(rope.theta > 0) || !(rope.factor > 0)) {
      return InvalidArgument(
          "rope has base {} and factor {}; both must be above 0", rope.theta, rope.factor);
    }
    for (const auto* factors : {&rope.short_factors, &rope.long_factors, &rope.freq_factors}) {
      if (!factors->empty() && factors->size() != static_cast<std::size_t>(rope.rotary_dim / 2)) {
        return InvalidArgument(
            "rope has {} factors for {} rotated dimensions; half as many are needed",
            factors->size(),
            rope.rotary_dim);
      }
    }
  }
  return {};
}

}  // namespace

Result<> Validate(const ModelSpec& model) {
  const Named sizes[] = {{"vocabulary size", model.vocab_size},
                         {"hidden size", model.hidden_size},
                         {"number of layers", model.num_layers},
                         {"number of attention heads", model.num_heads},
                         {"number of KV heads", model.num_kv_heads},
                         {"head size", model.head_dim},
                         {"FFN size", model.intermediate_size},
                         {"context length", model.max_position}};
  constexpr std::int64_t kMax = std::int64_t{1} << 31;
  for (const Named& size : sizes) {
    if (size.value <= 0 || size.value > kMax) {
      return InvalidArgument("the {} is {}; 1 to 2^31 is possible", size.name, size.value);
    }
  }
  if (model.num_heads % model.num_kv_heads != 0) {
    return InvalidArgument("{} attention heads are not a multiple of {} KV heads",
                           model.num_heads,
                           model.num_kv_heads);
  }
  if (!(model.norm_eps >= 0) || model.norm_eps > 1) {
    return InvalidArgument("the norm epsilon is {}; 0 to 1 is possible", model.norm_eps);
  }
  INFERD_TRY(ValidateMoe(model));
  INFERD_TRY(ValidateLayers(model));
  if (model.latent.used()) {
    INFERD_TRY(ValidateLatent(model));
  }
  return ValidateRopes(model);
}

}  // namespace inferd::spec
