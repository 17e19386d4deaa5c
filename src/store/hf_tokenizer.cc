// SPDX-License-Identifier: Apache-2.0
#include "store/hf_tokenizer.h"

#include "base/error.h"
#include "store/json_util.h"
#include "store/list_folder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace inferd::store {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxTokenizerBytes = 256U << 20U;
constexpr std::uint64_t kMaxConfigBytes = 64U << 20U;
constexpr std::uint64_t kMaxTemplateBytes = 4U << 20U;

// Empty if the file is absent.
Result<std::string> ReadOptional(const fs::path& path, std::uint64_t max_bytes) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    return std::string();
  }
  return base::ReadFile(path.string(), max_bytes);
}

// The literal of a token that is a string, or an object with "content".
std::string Literal(const Json* value) {
  if (value != nullptr && value->is_string()) {
    return value->get<std::string>();
  }
  if (value != nullptr && value->is_object()) {
    const auto content = value->find("content");
    if (content != value->end() && content->is_string()) {
      return content->get<std::string>();
    }
  }
  return {};
}

// Id of an added token in tokenizer_config.json's added_tokens_decoder, {"151645": {"content":
// ...}}.
std::optional<std::int32_t> FindInConfig(const Json& config, const std::string& literal) {
  const auto decoder = config.find("added_tokens_decoder");
  if (decoder == config.end() || !decoder->is_object()) {
    return std::nullopt;
  }
  for (const auto& [id, token] : decoder->items()) {
    std::int32_t number = -1;
    const auto parsed = std::from_chars(id.data(), id.data() + id.size(), number);
    if (parsed.ec == std::errc() && Literal(&token) == literal) {
      return number;
    }
  }
  return std::nullopt;
}

// Id of an added token in tokenizer.json. The vocabulary itself is skipped: it is large, and end
// tokens are added ones.
Result<std::optional<std::int32_t>> FindInTokenizer(const std::string& what,
                                                    const std::string& text,
                                                    const std::string& literal) {
  INFERD_ASSIGN(
      const Json tokenizer,
      ParseJsonObject(
          what, text, {"model", "normalizer", "pre_tokenizer", "decoder", "post_processor"}));
  const auto added = tokenizer.find("added_tokens");
  if (added == tokenizer.end() || !added->is_array()) {
    return std::optional<std::int32_t>();
  }
  for (const Json& token : *added) {
    if (token.is_object() && Literal(&token) == literal) {
      INFERD_ASSIGN(const auto id, JsonFields(what + ": added_tokens", token).Int("id"));
      if (id) {
        return std::optional<std::int32_t>(
            static_cast<std::int32_t>(std::clamp<std::int64_t>(*id, -1, INT32_MAX)));
      }
    }
  }
  return std::optional<std::int32_t>();
}

Result<> FindEos(const fs::path& folder,
                 const TokenizerFiles& files,
                 std::vector<std::int32_t>* eos_ids) {
  if (files.tokenizer_config_json.empty()) {
    return {};
  }
  INFERD_ASSIGN(
      const Json config,
      ParseJsonObject((folder / "tokenizer_config.json").string(), files.tokenizer_config_json));
  const auto eos = config.find("eos_token");
  const std::string literal = eos == config.end() ? "" : Literal(&*eos);
  if (literal.empty()) {
    return {};
  }
  auto id = FindInConfig(config, literal);
  if (!id && !files.tokenizer_json.empty()) {
    INFERD_ASSIGN(
        id, FindInTokenizer((folder / "tokenizer.json").string(), files.tokenizer_json, literal));
  }
  if (id) {
    eos_ids->push_back(*id);
  }
  return {};
}

Result<> ReadTemplates(const fs::path& folder, TokenizerFiles* files) {
  INFERD_ASSIGN(std::string jinja, ReadOptional(folder / "chat_template.jinja", kMaxTemplateBytes));
  if (!jinja.empty()) {
    files->chat_template = std::move(jinja);
  } else {
    INFERD_ASSIGN(const std::string json,
                  ReadOptional(folder / "chat_template.json", kMaxTemplateBytes));
    if (!json.empty()) {
      const std::string what = (folder / "chat_template.json").string();
      INFERD_ASSIGN(const Json object, ParseJsonObject(what, json));
      INFERD_ASSIGN(files->chat_template, JsonFields(what, object).String("chat_template"));
    }
  }
  std::vector<fs::path> named;
  for (const fs::path& path : ListFolder(folder / "additional_chat_templates")) {
    if (path.extension() == ".jinja") {
      named.push_back(path);
    }
  }
  std::ranges::sort(named);
  for (const fs::path& path : named) {
    INFERD_ASSIGN(std::string text, base::ReadFile(path.string(), kMaxTemplateBytes));
    files->named_templates.emplace_back(path.stem().string(), std::move(text));
  }
  return {};
}

}  // namespace

Result<TokenizerFiles> ReadHfTokenizer(const std::string& folder,
                                       std::vector<std::int32_t>* eos_ids) {
  const fs::path root(folder);
  TokenizerFiles files;
  INFERD_ASSIGN(files.tokenizer_json, ReadOptional(root / "tokenizer.json", kMaxTokenizerBytes));
  INFERD_ASSIGN(files.tokenizer_config_json,
                ReadOptional(root / "tokenizer_config.json", kMaxConfigBytes));
  INFERD_TRY(ReadTemplates(root, &files));
  INFERD_TRY(FindEos(root, files, eos_ids));
  return files;
}

Result<GenerationDefaults> ReadHfGeneration(const std::string& folder,
                                            std::vector<std::int32_t>* eos_ids) {
  GenerationDefaults defaults;
  const fs::path path = fs::path(folder) / "generation_config.json";
  INFERD_ASSIGN(const std::string text, ReadOptional(path, kMaxConfigBytes));
  if (text.empty()) {
    return defaults;
  }
  INFERD_ASSIGN(const Json object, ParseJsonObject(path.string(), text));
  const JsonFields fields(path.string(), object);
  INFERD_ASSIGN(defaults.temperature, fields.Float("temperature"));
  INFERD_ASSIGN(defaults.top_p, fields.Float("top_p"));
  INFERD_ASSIGN(defaults.min_p, fields.Float("min_p"));
  INFERD_ASSIGN(defaults.repetition_penalty, fields.Float("repetition_penalty"));
  INFERD_ASSIGN(const auto top_k, fields.Int("top_k"));
  if (top_k) {
    defaults.top_k = static_cast<std::int32_t>(std::clamp<std::int64_t>(*top_k, 0, INT32_MAX));
  }
  INFERD_ASSIGN(const auto ids, fields.Ints("eos_token_id"));
  for (const std::int64_t id : ids) {
    eos_ids->push_back(static_cast<std::int32_t>(std::clamp<std::int64_t>(id, -1, INT32_MAX)));
  }
  return defaults;
}

}  // namespace inferd::store
