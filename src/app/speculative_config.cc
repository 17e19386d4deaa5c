// SPDX-License-Identifier: Apache-2.0
#include "app/speculative_config.h"

#include "base/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace inferd::app {
namespace {

constexpr std::int32_t kDefaultTokens = 5;
constexpr std::int32_t kMaxTokens = 32;
constexpr std::int32_t kMaxNgram = 16;

Result<> ReadInt(const std::string& key,
                 const nlohmann::json& value,
                 std::int32_t most,
                 std::int32_t* out) {
  if (!value.is_number_integer() || value < 1 || value > most) {
    return InvalidArgument("--speculative-config: {} is {}; it must be a whole number from 1 to {}",
                           key,
                           value.dump(),
                           most);
  }
  *out = value.get<std::int32_t>();
  return {};
}

Result<> ReadKey(const std::string& key, const nlohmann::json& value, Speculation* out) {
  engine::PromptLookupOptions& lookup = out->prompt_lookup;
  if (key == "num_speculative_tokens") {
    return ReadInt(key, value, kMaxTokens, &out->num_tokens);
  }
  if (key == "prompt_lookup_max") {
    return ReadInt(key, value, kMaxNgram, &lookup.max_ngram);
  }
  if (key == "prompt_lookup_min") {
    return ReadInt(key, value, kMaxNgram, &lookup.min_ngram);
  }
  if (key == "adaptive" && value.is_boolean()) {
    lookup.adaptive = value.get<bool>();
    return {};
  }
  if (key == "method" && value == "ngram") {
    return {};
  }
  if (key == "method" || key == "model") {
    return Unimplemented(
        "--speculative-config: {} is {}; only the method \"ngram\" is there, which needs no model",
        key,
        value.dump());
  }
  return InvalidArgument(
      "--speculative-config: {} is {}; the keys are method, num_speculative_tokens, "
      "prompt_lookup_max, prompt_lookup_min and adaptive (true or false)",
      key,
      value.dump());
}

}  // namespace

Result<Speculation> ParseSpeculativeConfig(const std::string& text) {
  Speculation speculation;
  if (text.empty()) {
    return speculation;
  }
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return InvalidArgument(
        "--speculative-config is '{}'; give a JSON object such as "
        "{{\"method\": \"ngram\", \"num_speculative_tokens\": 5}}",
        text);
  }
  speculation.num_tokens = kDefaultTokens;
  for (const auto& [key, value] : json.items()) {
    INFERD_TRY(ReadKey(key, value, &speculation));
  }
  if (!json.contains("prompt_lookup_min")) {
    speculation.prompt_lookup.min_ngram =
        std::min(speculation.prompt_lookup.min_ngram, speculation.prompt_lookup.max_ngram);
  }
  if (speculation.prompt_lookup.min_ngram > speculation.prompt_lookup.max_ngram) {
    return InvalidArgument(
        "--speculative-config: prompt_lookup_min is {}, more than prompt_lookup_max, which is {}",
        speculation.prompt_lookup.min_ngram,
        speculation.prompt_lookup.max_ngram);
  }
  return speculation;
}

}  // namespace inferd::app
