// SPDX-License-Identifier: Apache-2.0
#include "store/hf_config.h"

#include "base/error.h"
#include "store/hf_deepseek.h"
#include "store/hf_rope.h"
#include "store/json_util.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace inferd::store {
namespace {

using spec::ModelSpec;

constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;

Result<std::int64_t> Size(const JsonFields& config, const char* key, std::int64_t fallback) {
  INFERD_ASSIGN(const auto given, config.Int(key));
  if (!given && fallback == 0) {
    return InvalidArgument("{}: {} is absent", config.what(), key);
  }
  const std::int64_t value = given.value_or(fallback);
  if (value <= 0 || value > kMaxSize) {
    return InvalidArgument("{}: {} is {}; 1 to 2^31 is allowed", config.what(), key, value);
  }
  return value;
}

Result<> FillSizes(const JsonFields& config, const HfDefaults& defaults, ModelSpec* spec) {
  INFERD_ASSIGN(spec->vocab_size, Size(config, "vocab_size", defaults.vocab_size));
  INFERD_ASSIGN(spec->hidden_size, Size(config, "hidden_size", defaults.hidden_size));
  INFERD_ASSIGN(spec->intermediate_size,
                Size(config, "intermediate_size", defaults.intermediate_size));
  INFERD_ASSIGN(spec->num_layers, Size(config, "num_hidden_layers", defaults.num_layers));
  if (spec->num_layers > kMaxLayers) {
    return InvalidArgument(
        "{}: {} layers are more than {}", config.what(), spec->num_layers, kMaxLayers);
  }
  INFERD_ASSIGN(spec->num_heads, Size(config, "num_attention_heads", defaults.num_heads));
  const std::int64_t kv_heads =
      defaults.num_kv_heads != 0 ? defaults.num_kv_heads : spec->num_heads;
  INFERD_ASSIGN(spec->num_kv_heads, Size(config, "num_key_value_heads", kv_heads));
  const std::int64_t head_dim =
      defaults.head_dim != 0 ? defaults.head_dim : spec->hidden_size / spec->num_heads;
  INFERD_ASSIGN(spec->head_dim, Size(config, "head_dim", head_dim));
  INFERD_ASSIGN(spec->max_position, Size(config, "max_position_embeddings", defaults.max_position));
  INFERD_ASSIGN(spec->norm_eps, config.FloatOr("rms_norm_eps", defaults.norm_eps));
  return {};
}

Result<spec::Activation> ActivationOf(const JsonFields& config, const Family& family) {
  for (const char* key : {"hidden_activation", "hidden_act"}) {
    INFERD_ASSIGN(const auto name, config.String(key));
    if (!name) {
      continue;
    }
    // Gemma files say "gelu" where the reference computes the tanh form.
    if (family.activation == spec::Activation::kGeluTanh && *name == "gelu") {
      return spec::Activation::kGeluTanh;
    }
    if (*name == "silu" || *name == "swish") {
      return spec::Activation::kSilu;
    }
    if (*name == "gelu_pytorch_tanh" || *name == "gelu_new") {
      return spec::Activation::kGeluTanh;
    }
    if (*name == "gelu") {
      return spec::Activation::kGelu;
    }
    return Unimplemented(
        "{}: {} is {}; silu, gelu and gelu_pytorch_tanh are supported", config.what(), key, *name);
  }
  return family.activation;
}

Result<> FillTraits(const JsonFields& config, const Family& family, ModelSpec* spec) {
  INFERD_ASSIGN(spec->activation, ActivationOf(config, family));
  spec->norm_plus_one = family.norm_plus_one;
  spec->sandwich_norm = family.sandwich_norm;
  spec->qk_norm = family.qk_norm;
  INFERD_ASSIGN(const bool attention_bias, config.BoolOr("attention_bias", false));
  INFERD_ASSIGN(const bool qkv_bias, config.BoolOr("qkv_bias", family.qkv_bias));
  spec->qkv_bias = attention_bias || qkv_bias;
  spec->o_bias = attention_bias;
  INFERD_ASSIGN(spec->mlp_bias, config.BoolOr("mlp_bias", false));
  INFERD_ASSIGN(spec->tied_head, config.BoolOr("tie_word_embeddings", family.defaults.tied_head));
  INFERD_ASSIGN(spec->attention_softcap, config.FloatOr("attn_logit_softcapping", 0));
  INFERD_ASSIGN(spec->final_softcap, config.FloatOr("final_logit_softcapping", 0));
  if (family.scaled_embedding) {
    spec->embedding_scale = std::sqrt(static_cast<double>(spec->hidden_size));
  }
  if (family.defaults.query_pre_attn_scalar != 0) {
    INFERD_ASSIGN(const double scalar,
                  config.FloatOr("query_pre_attn_scalar", family.defaults.query_pre_attn_scalar));
    if (!(scalar > 0)) {
      return InvalidArgument(
          "{}: query_pre_attn_scalar is {}; it must be above 0", config.what(), scalar);
    }
    spec->attention_scale = 1 / std::sqrt(scalar);
  }
  INFERD_ASSIGN(const bool bidirectional, config.BoolOr("use_bidirectional_attention", false));
  if (bidirectional) {
    return Unimplemented("{}: use_bidirectional_attention: not a decoder", config.what());
  }
  return {};
}

bool HasWindow(const Family& family,
               std::int64_t layer,
               std::int64_t pattern,
               std::int64_t max_window_layers) {
  switch (family.window) {
    case WindowRule::kNone:
      return false;
    case WindowRule::kAll:
      return true;
    case WindowRule::kFromLayer:
      return layer >= max_window_layers;
    case WindowRule::kEvenLayers:
      return layer % 2 == 0 && layer < max_window_layers;
    case WindowRule::kAlternating:
      return (layer + 1) % pattern != 0;
  }
  return false;
}

// 0: no layer has one. "sliding_window": null switches it off; an absent key means the family's
// default.
Result<std::int64_t> WindowOf(const JsonFields& config, const Json& object, const Family& family) {
  INFERD_ASSIGN(const bool use,
                config.BoolOr("use_sliding_window", family.defaults.use_sliding_window));
  if (!use) {
    return 0;
  }
  if (!object.contains("sliding_window")) {
    return family.window == WindowRule::kNone ? 0 : family.defaults.window;
  }
  INFERD_ASSIGN(const std::int64_t window, config.IntOr("sliding_window", 0));
  if (window < 0 || window > kMaxSize) {
    return InvalidArgument("{}: sliding_window is {}", config.what(), window);
  }
  return window;
}

Result<> FillWindows(const JsonFields& config,
                     const Json& object,
                     const Family& family,
                     ModelSpec* spec) {
  INFERD_ASSIGN(const std::int64_t window, WindowOf(config, object, family));
  INFERD_ASSIGN(const auto types, config.Strings("layer_types"));
  if (!types.empty()) {
    if (types.size() != spec->layers.size()) {
      return InvalidArgument("{}: layer_types has {} entries for {} layers",
                             config.what(),
                             types.size(),
                             spec->layers.size());
    }
    for (std::size_t i = 0; i < types.size(); ++i) {
      if (types[i] == "sliding_attention" && window == 0) {
        return InvalidArgument(
            "{}: layer_types[{}] is sliding_attention, but sliding_window is null or switched off",
            config.what(),
            i);
      }
      if (types[i] != "sliding_attention" && types[i] != "full_attention") {
        return Unimplemented(
            "{}: layer_types[{}] is {}; full_attention and sliding_attention are supported",
            config.what(),
            i,
            types[i]);
      }
      spec->layers[i].window = types[i] == "sliding_attention" ? window : 0;
    }
    return {};
  }
  INFERD_ASSIGN(const auto given_pattern, config.Int("sliding_window_pattern"));
  INFERD_ASSIGN(const std::int64_t pattern,
                config.IntOr("_sliding_window_pattern", given_pattern.value_or(family.pattern)));
  if (family.window == WindowRule::kAlternating && pattern <= 0) {
    return InvalidArgument(
        "{}: sliding_window_pattern is {}; it must be above 0", config.what(), pattern);
  }
  INFERD_ASSIGN(const std::int64_t max_window_layers, config.IntOr("max_window_layers", 28));
  for (std::int64_t i = 0; i < spec->num_layers; ++i) {
    spec->layers[static_cast<std::size_t>(i)].window =
        HasWindow(family, i, pattern, max_window_layers) ? window : 0;
  }
  return {};
}

Result<std::int64_t> EitherSize(const JsonFields& config, const char* key, const char* other) {
  return Size(config, config.Get(key) != nullptr ? key : other, 0);
}

Result<> FillMoe(const JsonFields& config, const Family& family, ModelSpec* spec) {
  if (family.moe == MoeRule::kDense) {
    return {};
  }
  if (family.moe == MoeRule::kAfterDense) {
    return FillDeepseekMoe(config, family, spec);
  }
  spec::MoeSpec& moe = spec->moe;
  INFERD_ASSIGN(moe.num_experts, EitherSize(config, "num_local_experts", "num_experts"));
  INFERD_ASSIGN(moe.top_k, Size(config, "num_experts_per_tok", 0));
  if (family.moe == MoeRule::kEveryLayer) {
    moe.expert_intermediate_size = spec->intermediate_size;
    for (spec::LayerSpec& layer : spec->layers) {
      layer.moe = true;
    }
    return {};
  }
  INFERD_ASSIGN(moe.expert_intermediate_size, Size(config, "moe_intermediate_size", 0));
  if (family.has_norm_topk_prob) {
    INFERD_ASSIGN(moe.renormalize, config.BoolOr("norm_topk_prob", false));
  }
  if (family.shared_expert) {
    INFERD_ASSIGN(moe.shared_intermediate_size, Size(config, "shared_expert_intermediate_size", 0));
    moe.shared_gate = true;
  }
  INFERD_ASSIGN(const std::int64_t step, Size(config, "decoder_sparse_step", 1));
  INFERD_ASSIGN(const auto dense_layers, config.Ints("mlp_only_layers"));
  const std::set<std::int64_t> dense(dense_layers.begin(), dense_layers.end());
  for (std::int64_t i = 0; i < spec->num_layers; ++i) {
    spec->layers[static_cast<std::size_t>(i)].moe = !dense.contains(i) && (i + 1) % step == 0;
  }
  return {};
}

Result<const Family*> FamilyOf(const JsonFields& config) {
  INFERD_ASSIGN(const auto architectures, config.Strings("architectures"));
  INFERD_ASSIGN(const std::string model_type, config.StringOr("model_type", ""));
  const std::string architecture = architectures.empty() ? "" : architectures.front();
  const Family* family = FindHfFamily(architecture, model_type);
  if (family == nullptr) {
    return Unimplemented("{}: architecture {} is not supported; {} are",
                         config.what(),
                         architecture.empty() ? "of model_type " + model_type : architecture,
                         HfFamilyNames());
  }
  return family;
}

}  // namespace

Result<HfModelConfig> ParseHfConfig(std::string_view what, std::string_view text) {
  INFERD_ASSIGN(const Json whole, ParseJsonObject(what, text));
  const JsonFields outer(what, whole);
  HfModelConfig result;
  INFERD_ASSIGN(result.family, FamilyOf(outer));
  const Family& family = *result.family;
  INFERD_ASSIGN(result.quant, ReadQuantConfig(outer));

  // Models with a vision part keep the decoder's keys in text_config.
  const Json* text_config = outer.Get("text_config");
  const bool nested = text_config != nullptr && text_config->is_object();
  const Json& object = nested ? *text_config : whole;
  const JsonFields config(nested ? fmt::format("{}: text_config", what) : std::string(what),
                          object);
  if (!result.quant) {
    INFERD_ASSIGN(result.quant, ReadQuantConfig(config));
  }

  ModelSpec& spec = result.spec;
  INFERD_ASSIGN(const auto architectures, outer.Strings("architectures"));
  spec.architecture = architectures.empty() ? std::string(family.name) : architectures.front();
  INFERD_TRY(FillSizes(config, family.defaults, &spec));
  if (family.latent) {
    INFERD_TRY(FillLatent(config, &spec));
  }
  INFERD_TRY(FillTraits(config, family, &spec));
  spec.layers.resize(static_cast<std::size_t>(spec.num_layers));
  INFERD_TRY(FillWindows(config, object, family, &spec));
  INFERD_TRY(FillMoe(config, family, &spec));
  INFERD_TRY(FillHfRope(config, family, &spec));
  if (family.latent) {
    FillLatentScale(&spec);
  }
  for (const JsonFields* fields : {&config, &outer}) {
    INFERD_ASSIGN(const auto ids, fields->Ints("eos_token_id"));
    for (const std::int64_t id : ids) {
      spec.eos_ids.push_back(
          static_cast<std::int32_t>(std::clamp<std::int64_t>(id, -1, INT32_MAX)));
    }
    INFERD_ASSIGN(const auto bos, fields->Ints("bos_token_id"));
    if (spec.bos_id < 0 && !bos.empty()) {
      spec.bos_id = static_cast<std::int32_t>(std::clamp<std::int64_t>(bos[0], -1, INT32_MAX));
    }
  }
  return result;
}

}  // namespace inferd::store
