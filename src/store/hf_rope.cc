// SPDX-License-Identifier: Apache-2.0
#include "store/hf_rope.h"

#include "base/error.h"

#include <array>
#include <utility>

namespace inferd::store {
namespace {

using spec::RopeKind;
using spec::RopeSpec;

constexpr std::array<std::pair<std::string_view, RopeKind>, 8> kKinds = {{
    {"default", RopeKind::kDefault},
    {"linear", RopeKind::kLinear},
    {"dynamic", RopeKind::kDynamic},
    {"llama3", RopeKind::kLlama3},
    {"yarn", RopeKind::kYarn},
    {"longrope", RopeKind::kLongRope},
    {"su", RopeKind::kLongRope},  // what Phi-3 called longrope first
    {"none", RopeKind::kDefault},
}};

// What holds unless the rope's own object says otherwise.
struct Around {
  double theta = 0;
  double partial = 1;
  std::int64_t head_dim = 0;
  std::int64_t max_position = 0;
  std::optional<std::int64_t> original_max_position;  // beside rope_scaling (Phi-3)
};

Result<RopeKind> KindOf(const JsonFields& rope) {
  INFERD_ASSIGN(const auto now, rope.String("rope_type"));
  INFERD_ASSIGN(const auto before, rope.String("type"));
  const auto find = [](const std::string& name) -> std::optional<RopeKind> {
    for (const auto& [known, kind] : kKinds) {
      if (known == name) {
        return kind;
      }
    }
    return std::nullopt;
  };
  for (const auto& name : {now, before}) {
    if (name && !find(*name)) {
      return Unimplemented(
          "{}: rope type {} is not supported; default, linear, dynamic, llama3, yarn and longrope "
          "are",
          rope.what(),
          *name);
    }
  }
  if (now && before && find(*now) != find(*before)) {
    return InvalidArgument(
        "{}: rope_type says {}, but type says {}; remove one of them", rope.what(), *now, *before);
  }
  if (rope.Get("mrope_section") != nullptr) {
    return Unimplemented("{}: rope with mrope_section (mrope) is not supported", rope.what());
  }
  return *find(now.value_or(before.value_or("default")));
}

Result<double> NeededFactor(const JsonFields& rope) {
  INFERD_ASSIGN(const auto factor, rope.Float("factor"));
  if (!factor || !(*factor > 0)) {
    return InvalidArgument("{}: factor is {}; this rope type needs one above 0",
                           rope.what(),
                           factor ? fmt::format("{}", *factor) : "absent");
  }
  return *factor;
}

Result<> FillLlama3(const JsonFields& rope, RopeSpec* spec) {
  INFERD_ASSIGN(spec->factor, NeededFactor(rope));
  for (const char* key :
       {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    if (rope.Get(key) == nullptr) {
      return InvalidArgument("{}: {} is absent; rope type llama3 needs it", rope.what(), key);
    }
  }
  INFERD_ASSIGN(spec->low_freq_factor, rope.FloatOr("low_freq_factor", 0));
  INFERD_ASSIGN(spec->high_freq_factor, rope.FloatOr("high_freq_factor", 0));
  if (!(spec->high_freq_factor > spec->low_freq_factor) || !(spec->low_freq_factor > 0)) {
    return InvalidArgument(
        "{}: high_freq_factor {} must be above low_freq_factor {}, and that above 0",
        rope.what(),
        spec->high_freq_factor,
        spec->low_freq_factor);
  }
  return {};
}

Result<> FillYarn(const JsonFields& rope, const Around& around, RopeSpec* spec) {
  INFERD_ASSIGN(const auto factor, rope.Float("factor"));
  spec->factor = factor.value_or(static_cast<double>(around.max_position) /
                                 static_cast<double>(spec->original_max_position));
  INFERD_ASSIGN(spec->beta_fast, rope.FloatOr("beta_fast", 32));
  INFERD_ASSIGN(spec->beta_slow, rope.FloatOr("beta_slow", 1));
  INFERD_ASSIGN(spec->attention_factor, rope.FloatOr("attention_factor", 0));
  INFERD_ASSIGN(spec->mscale, rope.FloatOr("mscale", 0));
  INFERD_ASSIGN(spec->mscale_all_dim, rope.FloatOr("mscale_all_dim", 0));
  INFERD_ASSIGN(spec->truncate, rope.BoolOr("truncate", true));
  return {};
}

Result<> FillLongRope(const JsonFields& rope, const Around& around, RopeSpec* spec) {
  INFERD_ASSIGN(spec->short_factors, rope.Floats("short_factor"));
  INFERD_ASSIGN(spec->long_factors, rope.Floats("long_factor"));
  const auto needed = static_cast<std::size_t>(spec->rotary_dim / 2);
  if (spec->short_factors.size() != needed || spec->long_factors.size() != needed) {
    return InvalidArgument(
        "{}: short_factor has {} and long_factor {} values; {} rotated dimensions need {} each",
        rope.what(),
        spec->short_factors.size(),
        spec->long_factors.size(),
        spec->rotary_dim,
        needed);
  }
  INFERD_ASSIGN(const auto factor, rope.Float("factor"));
  spec->factor = factor.value_or(static_cast<double>(around.max_position) /
                                 static_cast<double>(spec->original_max_position));
  INFERD_ASSIGN(spec->attention_factor, rope.FloatOr("attention_factor", 0));
  return {};
}

Result<RopeSpec> ParseRope(const JsonFields& rope, const Around& around) {
  RopeSpec spec;
  INFERD_ASSIGN(spec.kind, KindOf(rope));
  INFERD_ASSIGN(spec.theta, rope.FloatOr("rope_theta", around.theta));
  INFERD_ASSIGN(const double partial, rope.FloatOr("partial_rotary_factor", around.partial));
  if (!(spec.theta > 0) || !(partial > 0) || partial > 1) {
    return InvalidArgument(
        "{}: rope_theta {} must be above 0, partial_rotary_factor {} above 0 and at most 1",
        rope.what(),
        spec.theta,
        partial);
  }
  spec.rotary_dim = static_cast<std::int64_t>(static_cast<double>(around.head_dim) * partial);
  if (spec.rotary_dim < 2 || spec.rotary_dim % 2 != 0) {
    return InvalidArgument(
        "{}: {} of {} dimensions of a head would be rotated; an even number is needed",
        rope.what(),
        spec.rotary_dim,
        around.head_dim);
  }
  INFERD_ASSIGN(const auto original, rope.Int("original_max_position_embeddings"));
  spec.original_max_position =
      around.original_max_position.value_or(original.value_or(around.max_position));
  if (spec.original_max_position <= 1) {
    return InvalidArgument(
        "{}: original_max_position_embeddings is {}", rope.what(), spec.original_max_position);
  }
  switch (spec.kind) {
    case RopeKind::kLinear:
    case RopeKind::kDynamic: {
      INFERD_ASSIGN(spec.factor, NeededFactor(rope));
      break;
    }
    case RopeKind::kLlama3: {
      INFERD_TRY(FillLlama3(rope, &spec));
      break;
    }
    case RopeKind::kYarn: {
      INFERD_TRY(FillYarn(rope, around, &spec));
      break;
    }
    case RopeKind::kLongRope: {
      INFERD_TRY(FillLongRope(rope, around, &spec));
      break;
    }
    case RopeKind::kNone:
    case RopeKind::kDefault:
      break;
  }
  return spec;
}

Result<const Json*> ObjectOf(const JsonFields& config, const char* key) {
  const Json* value = config.Get(key);
  if (value != nullptr && !value->is_object()) {
    return InvalidArgument("{}: {} is not an object", config.what(), key);
  }
  return value;
}

}  // namespace

Result<> FillHfRope(const JsonFields& config, const Family& family, spec::ModelSpec* spec) {
  Around around;
  around.head_dim = spec->latent.used() ? spec->latent.rope_dim : spec->head_dim;
  around.max_position = spec->max_position;
  INFERD_ASSIGN(around.theta, config.FloatOr("rope_theta", family.defaults.rope_theta));
  INFERD_ASSIGN(around.partial, config.FloatOr("partial_rotary_factor", 1));
  INFERD_ASSIGN(around.original_max_position, config.Int("original_max_position_embeddings"));
  INFERD_ASSIGN(const Json* scaling, ObjectOf(config, "rope_scaling"));
  INFERD_ASSIGN(const Json* parameters, ObjectOf(config, "rope_parameters"));
  const Json nothing = Json::object();
  const Json* flat = scaling != nullptr ? scaling : parameters != nullptr ? parameters : &nothing;
  const std::string what =
      config.what() + (scaling != nullptr ? ": rope_scaling" : ": rope_parameters");

  // New files may say it per kind of layer.
  const JsonFields nested(what, parameters != nullptr ? *parameters : nothing);
  INFERD_ASSIGN(const Json* full, ObjectOf(nested, "full_attention"));
  INFERD_ASSIGN(const Json* sliding, ObjectOf(nested, "sliding_attention"));
  const bool per_kind = full != nullptr || sliding != nullptr;
  if (per_kind && scaling == nullptr) {
    flat = full != nullptr ? full : &nothing;
  }
  INFERD_ASSIGN(RopeSpec rope, ParseRope(JsonFields(what, *flat), around));
  spec->ropes = {std::move(rope)};
  if (family.local_rope_theta == 0) {
    if (sliding != nullptr && full != nullptr && *sliding != *full) {
      return Unimplemented(
          "{}: a rope of its own for sliding layers is not part of {}", what, family.name);
    }
    return {};
  }
  INFERD_ASSIGN(around.theta, config.FloatOr("rope_local_base_freq", family.local_rope_theta));
  around.original_max_position.reset();
  INFERD_ASSIGN(RopeSpec local,
                ParseRope(JsonFields(what, sliding != nullptr ? *sliding : nothing), around));
  spec->ropes.push_back(std::move(local));
  for (spec::LayerSpec& layer : spec->layers) {
    layer.rope = layer.window > 0 ? 1 : 0;
  }
  return {};
}

}  // namespace inferd::store
