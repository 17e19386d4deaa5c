// SPDX-License-Identifier: Apache-2.0
#include "api/core/token_params.h"

#include "api/core/generate_params.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

Result<> ParseLogitBias(const ServerContext& context,
                        const Fields& fields,
                        spec::SamplingParams* sampling) {
  const Json* const bias = fields.Find("logit_bias");
  if (bias == nullptr) {
    return {};
  }
  if (!bias->is_object()) {
    return FieldError(fields.fault(),
                      "logit_bias",
                      "logit_bias must be an object of token ids to numbers, not {}",
                      bias->type_name());
  }
  if (bias->size() > limits::kLogitBias) {
    return FieldError(fields.fault(),
                      "logit_bias",
                      "logit_bias has {} entries; at most {} are allowed",
                      bias->size(),
                      limits::kLogitBias);
  }
  for (const auto& [key, value] : bias->items()) {
    const std::string path = "logit_bias." + key;
    std::int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 ||
        id >= context.model.vocab_size) {
      return FieldError(fields.fault(),
                        path,
                        "logit_bias keys must be token ids from 0 to {}",
                        context.model.vocab_size - 1);
    }
    INFERD_ASSIGN(const double amount,
                  ToReal(value, limits::kLogitBiasValue, path, fields.fault()));
    sampling->logit_bias.emplace_back(id, static_cast<float>(amount));
  }
  return {};
}

Result<> ParseAllowedTokens(const ServerContext& context,
                            const Fields& fields,
                            spec::SamplingParams* sampling) {
  const Json* const given = fields.Find("allowed_token_ids");
  if (given == nullptr) {
    return {};
  }
  INFERD_ASSIGN(sampling->allowed_tokens,
                ParseIds(*given,
                         "allowed_token_ids",
                         context.model.vocab_size,
                         limits::kAllowedTokenIds,
                         fields.fault()));
  if (sampling->allowed_tokens.empty()) {
    return FieldError(fields.fault(),
                      "allowed_token_ids",
                      "allowed_token_ids is empty, so nothing could be generated");
  }
  std::sort(sampling->allowed_tokens.begin(), sampling->allowed_tokens.end());
  return {};
}

// A word as it stands at a text's start and behind a space, as vLLM does: the second spelling only
// when it differs in its first token and not in length.
Result<> ParseBadWords(const ServerContext& context,
                       const Fields& fields,
                       spec::SamplingParams* sampling) {
  const Json* const given = fields.Find("bad_words");
  if (given == nullptr) {
    return {};
  }
  Fault* const fault = fields.fault();
  if (!given->is_array() || given->size() > limits::kBadWords) {
    return FieldError(
        fault, "bad_words", "bad_words must be a list of at most {} strings", limits::kBadWords);
  }
  for (std::size_t i = 0; i < given->size(); ++i) {
    const std::string path = fmt::format("bad_words[{}]", i);
    const Json& item = (*given)[i];
    const std::string word = item.is_string() ? item.get<std::string>() : "";
    const std::size_t begin = word.find_first_not_of(' ');
    if (begin == std::string::npos || word.size() > limits::kBadWordBytes) {
      return FieldError(fault,
                        path,
                        "{} must be a string of 1 to {} bytes that is not blank",
                        path,
                        limits::kBadWordBytes);
    }
    std::vector<std::int32_t> plain;
    for (const char* prefix : {"", " "}) {
      INFERD_ASSIGN(
          auto ids,
          context.model.tokenizer->Encode(prefix + word.substr(begin),
                                          {.add_special = false, .parse_special = false}));
      const bool is_plain = *prefix == 0;
      if (ids.empty() || (!is_plain && (ids.size() != plain.size() || ids[0] == plain[0]))) {
        continue;
      }
      plain = ids;
      sampling->bad_words.push_back(std::move(ids));
    }
  }
  return {};
}

}  // namespace

Result<> ParseTokenParams(const ServerContext& context,
                          const Fields& fields,
                          spec::SamplingParams* sampling) {
  INFERD_TRY(ParseLogitBias(context, fields, sampling));
  INFERD_TRY(ParseAllowedTokens(context, fields, sampling));
  return ParseBadWords(context, fields, sampling);
}

}  // namespace inferd::api
