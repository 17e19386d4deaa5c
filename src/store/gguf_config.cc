// SPDX-License-Identifier: Apache-2.0
#include "store/gguf_config.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace inferd::store {
namespace {

using spec::ModelSpec;
using spec::RopeKind;

constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;

// Keys of one architecture: "llama." in front.
class Keys {
 public:
  Keys(const GgufFile& file, std::string architecture)
      : file_(file), prefix_(std::move(architecture) + ".") {}

  const GgufFile& file() const { return file_; }
  std::string Full(std::string_view key) const { return prefix_ + std::string(key); }

  // fallback 0: the key must be there.
  Result<std::int64_t> Size(std::string_view key, std::int64_t fallback) const {
    // Some files give one number per layer; a decoder of equal layers needs them equal.
    INFERD_ASSIGN(const auto given, file_.Ints(Full(key)));
    if (given.empty() && fallback == 0) {
      return InvalidArgument("{}: key {} is absent", file_.path(), Full(key));
    }
    const std::int64_t value = given.empty() ? fallback : given.front();
    for (const std::int64_t other : given) {
      if (other != value) {
        return Unimplemented("{}: key {} differs from layer to layer ({} and {})",
                             file_.path(),
                             Full(key),
                             value,
                             other);
      }
    }
    if (value <= 0 || value > kMaxSize) {
      return InvalidArgument(
          "{}: key {} is {}; 1 to 2^31 is allowed", file_.path(), Full(key), value);
    }
    return value;
  }
  Result<std::int64_t> IntOr(std::string_view key, std::int64_t fallback) const {
    INFERD_ASSIGN(const auto value, file_.Int(Full(key)));
    return value.value_or(fallback);
  }
  Result<double> FloatOr(std::string_view key, double fallback) const {
    INFERD_ASSIGN(const auto value, file_.Float(Full(key)));
    return value.value_or(fallback);
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

Result<> FillSizes(const Keys& keys, const TensorSource& tensors, ModelSpec* spec) {
  INFERD_ASSIGN(spec->num_layers, keys.Size("block_count", 0));
  if (spec->num_layers > kMaxLayers) {
    return InvalidArgument(
        "{}: {} layers are more than {}", keys.file().path(), spec->num_layers, kMaxLayers);
  }
  INFERD_ASSIGN(spec->hidden_size, keys.Size("embedding_length", 0));
  INFERD_ASSIGN(spec->intermediate_size, keys.Size("feed_forward_length", 0));
  INFERD_ASSIGN(spec->num_heads, keys.Size("attention.head_count", 0));
  INFERD_ASSIGN(spec->num_kv_heads, keys.Size("attention.head_count_kv", spec->num_heads));
  INFERD_ASSIGN(spec->head_dim,
                keys.Size("attention.key_length",
                          std::max<std::int64_t>(spec->hidden_size / spec->num_heads, 1)));
  INFERD_ASSIGN(const std::int64_t value_length,
                keys.Size("attention.value_length", spec->head_dim));
  if (value_length != spec->head_dim) {
    return Unimplemented("{}: values of {} dimensions beside keys of {} are not supported",
                         keys.file().path(),
                         value_length,
                         spec->head_dim);
  }
  INFERD_ASSIGN(spec->max_position, keys.Size("context_length", 2048));
  INFERD_ASSIGN(spec->norm_eps, keys.FloatOr("attention.layer_norm_rms_epsilon", 1e-5));
  const TensorInfo* embedding = tensors.Find("token_embd.weight");
  if (embedding == nullptr) {
    return InvalidArgument("{}: tensor token_embd.weight is absent", keys.file().path());
  }
  spec->vocab_size = embedding->rows();
  return {};
}

Result<> FillTraits(const Keys& keys,
                    const Family& family,
                    const TensorSource& tensors,
                    ModelSpec* spec) {
  const auto has = [&tensors](std::string_view name) { return tensors.Find(name) != nullptr; };
  spec->activation = family.activation;
  spec->sandwich_norm = family.sandwich_norm;
  spec->qk_norm = family.qk_norm;
  spec->qkv_bias = family.qkv_bias || has("blk.0.attn_q.bias");
  spec->o_bias = has("blk.0.attn_output.bias");
  spec->mlp_bias = has("blk.0.ffn_up.bias");
  spec->tied_head = !has("output.weight");
  spec->rope_interleaved = family.gguf_interleaved;
  INFERD_ASSIGN(spec->attention_softcap, keys.FloatOr("attn_logit_softcapping", 0));
  INFERD_ASSIGN(spec->final_softcap, keys.FloatOr("final_logit_softcapping", 0));
  if (family.scaled_embedding) {
    spec->embedding_scale = std::sqrt(static_cast<double>(spec->hidden_size));
  }
  const bool wide = family.gguf_wide_scale_layers == spec->num_layers;
  const double default_scale = wide ? 1 / std::sqrt(static_cast<double>(spec->hidden_size) /
                                                    static_cast<double>(spec->num_heads))
                                    : 0;
  INFERD_ASSIGN(spec->attention_scale, keys.FloatOr("attention.scale", default_scale));
  return {};
}

Result<> FillWindows(const Keys& keys, const Family& family, ModelSpec* spec) {
  spec->layers.resize(static_cast<std::size_t>(spec->num_layers));
  INFERD_ASSIGN(const std::int64_t window,
                keys.IntOr("attention.sliding_window",
                           family.window == WindowRule::kAlternating ? family.defaults.window : 0));
  if (window < 0 || window > kMaxSize) {
    return InvalidArgument(
        "{}: key {} is {}", keys.file().path(), keys.Full("attention.sliding_window"), window);
  }
  INFERD_ASSIGN(const auto pattern,
                keys.file().Ints(keys.Full("attention.sliding_window_pattern")));
  if (pattern.size() > 1) {
    return Unimplemented("{}: a sliding window pattern that lists layers is not supported",
                         keys.file().path());
  }
  const std::int64_t period = pattern.empty() ? family.pattern : pattern.front();
  if (family.window == WindowRule::kAlternating && period <= 0) {
    return InvalidArgument("{}: the sliding window pattern is {}", keys.file().path(), period);
  }
  for (std::int64_t i = 0; i < spec->num_layers; ++i) {
    const bool full = family.window == WindowRule::kAlternating && (i + 1) % period == 0;
    spec->layers[static_cast<std::size_t>(i)].window = full ? 0 : window;
  }
  return {};
}

// [rotary_dim / 2] values of a factor tensor; empty if there is none.
Result<std::vector<float>> Factors(const TensorSource& tensors,
                                   std::string_view name,
                                   std::int64_t rotary_dim) {
  const TensorInfo* tensor = tensors.Find(name);
  if (tensor == nullptr) {
    return std::vector<float>();
  }
  std::vector<float> factors(static_cast<std::size_t>(rotary_dim / 2));
  if (tensor->dtype != DType::kF32 || tensor->bytes != factors.size() * sizeof(float)) {
    return InvalidArgument(
        "{}: tensor {} has {} bytes of {}, but {} rotated dimensions need {} bytes of F32",
        tensors.FileOf(*tensor),
        name,
        tensor->bytes,
        DTypeName(tensor->dtype),
        rotary_dim,
        factors.size() * sizeof(float));
  }
  std::memcpy(factors.data(), tensors.Data(*tensor).data(), tensor->bytes);
  if (!std::ranges::all_of(factors,
                           [](float factor) { return factor > 0 && std::isfinite(factor); })) {
    return InvalidArgument(
        "{}: tensor {} holds a factor that is not above 0", tensors.FileOf(*tensor), name);
  }
  return factors;
}

Result<> FillScaling(const Keys& keys, ModelSpec* spec, spec::RopeSpec* rope) {
  INFERD_ASSIGN(const auto given, keys.file().String(keys.Full("rope.scaling.type")));
  INFERD_ASSIGN(const double old_factor, keys.FloatOr("rope.scale_linear", 1));
  const std::string type = given.value_or(old_factor != 1 ? "linear" : "none");
  INFERD_ASSIGN(rope->factor, keys.FloatOr("rope.scaling.factor", old_factor));
  INFERD_ASSIGN(rope->original_max_position,
                keys.Size("rope.scaling.original_context_length", spec->max_position));
  if (type == "none" || (type == "linear" && rope->factor == 1)) {
    rope->factor = 1;
  } else if (type == "linear") {
    rope->kind = RopeKind::kLinear;
  } else if (type == "yarn") {
    rope->kind = RopeKind::kYarn;
    INFERD_ASSIGN(const double attn_factor, keys.FloatOr("rope.scaling.attn_factor", 1));
    rope->attention_factor = attn_factor * (1 + 0.1 * std::log(std::max(rope->factor, 1.0)));
    INFERD_ASSIGN(rope->beta_fast, keys.FloatOr("rope.scaling.yarn_beta_fast", 32));
    INFERD_ASSIGN(rope->beta_slow, keys.FloatOr("rope.scaling.yarn_beta_slow", 1));
  } else if (type != "longrope") {  // told by its tensors, below
    return Unimplemented("{}: key {} is {}; none, linear, yarn and longrope are supported",
                         keys.file().path(),
                         keys.Full("rope.scaling.type"),
                         type);
  }
  if (!(rope->factor > 0)) {
    return InvalidArgument(
        "{}: the rope scaling factor is {}; it must be above 0", keys.file().path(), rope->factor);
  }
  return {};
}

Result<> FillFactors(const Keys& keys,
                     const TensorSource& tensors,
                     ModelSpec* spec,
                     spec::RopeSpec* rope) {
  INFERD_ASSIGN(rope->freq_factors, Factors(tensors, "rope_freqs.weight", rope->rotary_dim));
  INFERD_ASSIGN(rope->short_factors,
                Factors(tensors, "rope_factors_short.weight", rope->rotary_dim));
  INFERD_ASSIGN(rope->long_factors, Factors(tensors, "rope_factors_long.weight", rope->rotary_dim));
  if (rope->short_factors.empty() != rope->long_factors.empty()) {
    return InvalidArgument(
        "{}: only one of rope_factors_short.weight and rope_factors_long.weight is there",
        keys.file().path());
  }
  if (!rope->short_factors.empty()) {
    rope->kind = RopeKind::kLongRope;
    rope->factor =
        static_cast<double>(spec->max_position) / static_cast<double>(rope->original_max_position);
    INFERD_ASSIGN(rope->attention_factor, keys.FloatOr("rope.scaling.attn_factor", 0));
  }
  return {};
}

Result<> FillRope(const Keys& keys,
                  const Family& family,
                  const TensorSource& tensors,
                  ModelSpec* spec) {
  spec::RopeSpec rope;
  INFERD_ASSIGN(rope.theta, keys.FloatOr("rope.freq_base", family.defaults.rope_theta));
  INFERD_ASSIGN(rope.rotary_dim, keys.Size("rope.dimension_count", spec->head_dim));
  if (rope.rotary_dim > spec->head_dim || rope.rotary_dim % 2 != 0 || !(rope.theta > 0)) {
    return InvalidArgument("{}: {} of {} dimensions of a head would be rotated, with base {}",
                           keys.file().path(),
                           rope.rotary_dim,
                           spec->head_dim,
                           rope.theta);
  }
  INFERD_TRY(FillScaling(keys, spec, &rope));
  INFERD_TRY(FillFactors(keys, tensors, spec, &rope));
  spec->ropes = {rope};
  if (family.local_rope_theta != 0) {
    spec::RopeSpec local;
    local.rotary_dim = rope.rotary_dim;
    local.original_max_position = spec->max_position;
    INFERD_ASSIGN(local.theta, keys.FloatOr("rope.freq_base_swa", family.local_rope_theta));
    spec->ropes.push_back(std::move(local));
    for (spec::LayerSpec& layer : spec->layers) {
      layer.rope = layer.window > 0 ? 1 : 0;
    }
  }
  return {};
}

Result<> FillMoe(const Keys& keys,
                 const Family& family,
                 const TensorSource& tensors,
                 ModelSpec* spec) {
  INFERD_ASSIGN(const std::int64_t experts, keys.IntOr("expert_count", 0));
  if (experts == 0) {
    return {};
  }
  spec::MoeSpec& moe = spec->moe;
  INFERD_ASSIGN(moe.num_experts, keys.Size("expert_count", 0));
  INFERD_ASSIGN(moe.top_k, keys.Size("expert_used_count", 0));
  INFERD_ASSIGN(moe.expert_intermediate_size,
                keys.Size("expert_feed_forward_length", spec->intermediate_size));
  moe.renormalize = family.renormalize;
  const TensorInfo* shared = nullptr;
  const TensorInfo* stack = nullptr;
  for (std::int64_t i = 0; i < spec->num_layers; ++i) {
    const auto name = [i](std::string_view rest) {
      return fmt::format("blk.{}.{}.weight", i, rest);
    };
    spec->layers[static_cast<std::size_t>(i)].moe = tensors.Find(name("ffn_gate_inp")) != nullptr;
    shared = shared != nullptr ? shared : tensors.Find(name("ffn_gate_shexp"));
    stack = stack != nullptr ? stack : tensors.Find(name("ffn_gate_exps"));
  }
  // Older files lack the keys; the tensors know.
  if (stack != nullptr && stack->shape.size() == 3 &&
      !keys.file().Has(keys.Full("expert_feed_forward_length"))) {
    moe.expert_intermediate_size = stack->shape[1];
  }
  if (family.shared_expert) {
    if (shared == nullptr) {
      return InvalidArgument(
          "{}: no layer has the shared expert that {} needs", keys.file().path(), family.name);
    }
    moe.shared_intermediate_size = shared->rows();
    moe.shared_gate = true;
  }
  return {};
}

}  // namespace

Result<GgufModelConfig> ParseGgufConfig(const GgufFile& file, const TensorSource& tensors) {
  INFERD_ASSIGN(const auto architecture, file.String("general.architecture"));
  if (!architecture) {
    return InvalidArgument("{}: key general.architecture is absent", file.path());
  }
  GgufModelConfig result;
  result.family = FindGgufFamily(*architecture);
  if (result.family == nullptr) {
    return Unimplemented("{}: architecture {} is not supported; {} are",
                         file.path(),
                         *architecture,
                         GgufFamilyNames());
  }
  const Family& family = *result.family;
  const Keys keys(file, *architecture);
  ModelSpec& spec = result.spec;
  spec.architecture = *architecture;
  INFERD_TRY(FillSizes(keys, tensors, &spec));
  INFERD_TRY(FillTraits(keys, family, tensors, &spec));
  INFERD_TRY(FillWindows(keys, family, &spec));
  INFERD_TRY(FillRope(keys, family, tensors, &spec));
  INFERD_TRY(FillMoe(keys, family, tensors, &spec));
  INFERD_ASSIGN(const auto bos, file.Int("tokenizer.ggml.bos_token_id"));
  spec.bos_id =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(bos.value_or(-1), -1, INT32_MAX));
  return result;
}

}  // namespace inferd::store
