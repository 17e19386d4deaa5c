// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_config.h"

#include "base/error.h"

#include <nlohmann/json.hpp>

namespace inferd::text {
namespace {

using Json = nlohmann::json;

/// A token is written as a string or as an object with "content"; null and absent are nullopt.
Result<std::optional<std::string>> TokenField(const Json& config, const char* name) {
  const auto it = config.find(name);
  if (it == config.end() || it->is_null()) {
    return std::optional<std::string>();
  }
  const Json* token = &*it;
  if (token->is_object()) {
    const auto content = token->find("content");
    if (content != token->end()) {
      token = &*content;
    }
  }
  if (!token->is_string()) {
    return InvalidArgument(
        "tokenizer_config.json: {} must be a string or an object with a string 'content'", name);
  }
  return std::optional(token->get<std::string>());
}

/// "chat_template" is one template or a list of {"name", "template"}.
Result<> ReadTemplates(const Json& value, TokenizerConfig* config) {
  if (value.is_string()) {
    config->chat_template = value.get<std::string>();
    return {};
  }
  if (!value.is_array()) {
    return InvalidArgument(
        "tokenizer_config.json: chat_template must be a string or a list of named templates");
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    const Json& entry = value[i];
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() ||
        !entry.contains("template") || !entry["template"].is_string()) {
      return InvalidArgument(
          "tokenizer_config.json: chat_template[{}] must have a string 'name' and 'template'", i);
    }
    auto name = entry["name"].get<std::string>();
    auto source = entry["template"].get<std::string>();
    if (name == "default" || value.size() == 1) {
      config->chat_template = std::move(source);
    } else {
      config->named_templates.emplace_back(std::move(name), std::move(source));
    }
  }
  return {};
}

}  // namespace

Result<TokenizerConfig> ParseTokenizerConfig(std::string_view tokenizer_config_json) {
  const Json json = Json::parse(tokenizer_config_json, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return InvalidArgument("tokenizer_config.json is not a JSON object");
  }
  TokenizerConfig config;
  INFERD_ASSIGN(config.bos_token, TokenField(json, "bos_token"));
  INFERD_ASSIGN(config.eos_token, TokenField(json, "eos_token"));
  INFERD_ASSIGN(config.pad_token, TokenField(json, "pad_token"));
  INFERD_ASSIGN(config.unk_token, TokenField(json, "unk_token"));
  const auto chat_template = json.find("chat_template");
  if (chat_template != json.end() && !chat_template->is_null()) {
    INFERD_TRY(ReadTemplates(*chat_template, &config));
  }
  return config;
}

}  // namespace inferd::text
