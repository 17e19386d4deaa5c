// SPDX-License-Identifier: Apache-2.0
#include "api/core/sampler_params.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;
using spec::SamplerKind;

constexpr std::string_view kDefaultBreakers[] = {"\n", ":", "\"", "*"};

struct Named {
  std::string_view name;
  std::optional<SamplerKind> kind;  // none: always first, whatever the order
};
constexpr Named kSamplers[] = {{"temperature", SamplerKind::kTemperature},
                               {"top_k", SamplerKind::kTopK},
                               {"typ_p", SamplerKind::kTypicalP},
                               {"typical_p", SamplerKind::kTypicalP},
                               {"top_p", SamplerKind::kTopP},
                               {"min_p", SamplerKind::kMinP},
                               {"xtc", SamplerKind::kXtc},
                               {"dry", std::nullopt},
                               {"penalties", std::nullopt}};

Result<> ParseOrder(const Fields& fields, spec::SamplingParams* sampling) {
  const Json* const given = fields.Find("samplers");
  if (given == nullptr) {
    return {};
  }
  const std::string path = fields.Path("samplers");
  if (!given->is_array() || given->size() > limits::kSamplers) {
    return FieldError(
        fields.fault(), path, "{} must be a list of at most {} names", path, limits::kSamplers);
  }
  for (std::size_t i = 0; i < given->size(); ++i) {
    const Json& item = (*given)[i];
    const auto* const known =
        std::ranges::find_if(kSamplers, [&](const Named& named) { return item == named.name; });
    if (known == std::end(kSamplers)) {
      return FieldError(fields.fault(),
                        fmt::format("{}[{}]", path, i),
                        "{}[{}] is {}; it must be temperature, top_k, typ_p, top_p, min_p, xtc, "
                        "dry or penalties (the last two always come first)",
                        path,
                        i,
                        item.dump().substr(0, 50));
    }
    if (known->kind) {
      sampling->samplers.push_back(*known->kind);
    }
  }
  return {};
}

/// Ids of all tokens whose text holds one of the breakers.
Result<> ParseBreakers(const text::Tokenizer& tokenizer,
                       std::int64_t vocab_size,
                       const Fields& fields,
                       spec::SamplingParams* sampling) {
  std::vector<std::string> breakers(std::begin(kDefaultBreakers), std::end(kDefaultBreakers));
  if (const Json* const given = fields.Find("dry_sequence_breakers")) {
    const std::string path = fields.Path("dry_sequence_breakers");
    if (!given->is_array() || given->size() > limits::kBreakers) {
      return FieldError(
          fields.fault(), path, "{} must be a list of at most {} strings", path, limits::kBreakers);
    }
    breakers.clear();
    for (std::size_t i = 0; i < given->size(); ++i) {
      const std::string* const text = (*given)[i].get_ptr<const std::string*>();
      if (text == nullptr || text->empty() || text->size() > limits::kBreakerBytes) {
        return FieldError(fields.fault(),
                          fmt::format("{}[{}]", path, i),
                          "{}[{}] must be a string of 1 to {} bytes",
                          path,
                          i,
                          limits::kBreakerBytes);
      }
      breakers.push_back(*text);
    }
  }
  if (sampling->dry_multiplier <= 0) {
    return {};
  }
  for (std::int64_t id = 0; id < vocab_size; ++id) {
    const std::string_view bytes = tokenizer.TokenBytes(static_cast<std::int32_t>(id));
    if (std::ranges::any_of(breakers, [&](const std::string& breaker) {
          return bytes.find(breaker) != std::string_view::npos;
        })) {
      sampling->dry_breakers.push_back(static_cast<std::int32_t>(id));
    }
    if (sampling->dry_breakers.size() > limits::kBreakerTokens) {
      return FieldError(fields.fault(),
                        fields.Path("dry_sequence_breakers"),
                        "{} are part of more than {} tokens; give longer ones",
                        fields.Path("dry_sequence_breakers"),
                        limits::kBreakerTokens);
    }
  }
  return {};
}

}  // namespace

Result<> ParseSamplerParams(const text::Tokenizer& tokenizer,
                            std::int64_t vocab_size,
                            const Fields& fields,
                            spec::SamplingParams* sampling) {
  INFERD_ASSIGN(const auto typical_p, fields.Real(limits::kTypicalP));
  INFERD_ASSIGN(const auto xtc_probability, fields.Real(limits::kXtcProbability));
  INFERD_ASSIGN(const auto xtc_threshold, fields.Real(limits::kXtcThreshold));
  INFERD_ASSIGN(const auto dynatemp_range, fields.Real(limits::kDynatempRange));
  INFERD_ASSIGN(const auto dynatemp_exponent, fields.Real(limits::kDynatempExponent));
  INFERD_ASSIGN(const auto dry_multiplier, fields.Real(limits::kDryMultiplier));
  INFERD_ASSIGN(const auto dry_base, fields.Real(limits::kDryBase));
  INFERD_ASSIGN(const auto dry_allowed_length, fields.Int(limits::kDryAllowedLength));
  INFERD_ASSIGN(const auto dry_last_n, fields.Int(limits::kDryPenaltyLastN));
  sampling->typical_p = typical_p.value_or(sampling->typical_p);
  sampling->xtc_probability = xtc_probability.value_or(sampling->xtc_probability);
  sampling->xtc_threshold = xtc_threshold.value_or(sampling->xtc_threshold);
  sampling->dynatemp_range = dynatemp_range.value_or(sampling->dynatemp_range);
  sampling->dynatemp_exponent = dynatemp_exponent.value_or(sampling->dynatemp_exponent);
  sampling->dry_multiplier = dry_multiplier.value_or(sampling->dry_multiplier);
  sampling->dry_base = dry_base.value_or(sampling->dry_base);
  sampling->dry_allowed_length =
      static_cast<std::int32_t>(dry_allowed_length.value_or(sampling->dry_allowed_length));
  sampling->dry_last_n = static_cast<std::int32_t>(dry_last_n.value_or(sampling->dry_last_n));
  INFERD_TRY(ParseOrder(fields, sampling));
  return ParseBreakers(tokenizer, vocab_size, fields, sampling);
}

}  // namespace inferd::api
