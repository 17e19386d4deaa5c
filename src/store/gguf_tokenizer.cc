// SPDX-License-Identifier: Apache-2.0
// The text side of a GGUF file: vocabulary arrays, chat templates, ids that end a text.
#include "base/error.h"
#include "store/gguf_config.h"

#include <algorithm>
#include <array>

namespace inferd::store {
namespace {

constexpr std::uint64_t kMaxTokenBytes = 64 * 1024;
constexpr std::uint64_t kMaxTokens = 4'000'000;
constexpr std::uint64_t kMaxTemplateBytes = 4U << 20U;
constexpr std::string_view kPrefix = "tokenizer.ggml.";
constexpr std::string_view kTemplate = "tokenizer.chat_template";

// Control tokens that end a turn or a text in some family. Files of chat models often name only one
// of theirs.
constexpr std::array<std::string_view, 8> kEndTokens = {"<|im_end|>",
                                                        "<|eot_id|>",
                                                        "<|eom_id|>",
                                                        "<|end|>",
                                                        "<|endoftext|>",
                                                        "<|end_of_text|>",
                                                        "<|end_of_turn|>",
                                                        "<end_of_turn>"};
constexpr std::int32_t kControl = 3;
constexpr std::int32_t kUserDefined = 4;

std::string Key(std::string_view name) { return std::string(kPrefix) + std::string(name); }

Result<std::optional<std::int32_t>> Id(const GgufFile& file,
                                       std::string_view name,
                                       std::size_t num_tokens) {
  INFERD_ASSIGN(const auto id, file.Int(Key(name)));
  if (!id) {
    return std::optional<std::int32_t>();
  }
  // Some converters write 2^32 - 1 for "none".
  if (*id == -1 || *id == 0xFFFFFFFF) {
    return std::optional<std::int32_t>();
  }
  if (*id < 0 || static_cast<std::uint64_t>(*id) >= num_tokens) {
    return InvalidArgument(
        "{}: key {} is {}, but there are {} tokens", file.path(), Key(name), *id, num_tokens);
  }
  return std::optional<std::int32_t>(static_cast<std::int32_t>(*id));
}

Result<> CheckLength(const GgufFile& file,
                     std::string_view name,
                     std::size_t have,
                     std::size_t want) {
  if (have != 0 && have != want) {
    return InvalidArgument(
        "{}: key {} has {} entries for {} tokens", file.path(), Key(name), have, want);
  }
  return {};
}

Result<GgufVocabulary> ReadVocabulary(const GgufFile& file) {
  GgufVocabulary vocabulary;
  INFERD_ASSIGN(const auto model, file.String(Key("model")));
  INFERD_ASSIGN(const auto pre, file.String(Key("pre")));
  INFERD_ASSIGN(const auto architecture, file.String("general.architecture"));
  vocabulary.model = model.value_or("");
  vocabulary.pre = pre.value_or("");
  vocabulary.architecture = architecture.value_or("");
  INFERD_ASSIGN(vocabulary.tokens, file.Strings(Key("tokens"), kMaxTokenBytes));
  const std::size_t count = vocabulary.tokens.size();
  if (count > kMaxTokens) {
    return InvalidArgument("{}: {} tokens are more than {}", file.path(), count, kMaxTokens);
  }
  INFERD_ASSIGN(vocabulary.scores, file.Floats(Key("scores")));
  INFERD_ASSIGN(const auto types, file.Ints(Key("token_type")));
  INFERD_TRY(CheckLength(file, "scores", vocabulary.scores.size(), count));
  INFERD_TRY(CheckLength(file, "token_type", types.size(), count));
  for (const std::int64_t type : types) {
    vocabulary.types.push_back(static_cast<std::int32_t>(std::clamp<std::int64_t>(type, 0, 127)));
  }
  INFERD_ASSIGN(vocabulary.merges, file.Strings(Key("merges"), 2 * kMaxTokenBytes));
  INFERD_ASSIGN(vocabulary.bos_id, Id(file, "bos_token_id", count));
  INFERD_ASSIGN(vocabulary.eos_id, Id(file, "eos_token_id", count));
  INFERD_ASSIGN(vocabulary.eot_id, Id(file, "eot_token_id", count));
  INFERD_ASSIGN(vocabulary.eom_id, Id(file, "eom_token_id", count));
  INFERD_ASSIGN(vocabulary.unk_id, Id(file, "unknown_token_id", count));
  INFERD_ASSIGN(vocabulary.pad_id, Id(file, "padding_token_id", count));
  INFERD_ASSIGN(vocabulary.add_bos, file.Bool(Key("add_bos_token")));
  INFERD_ASSIGN(vocabulary.add_eos, file.Bool(Key("add_eos_token")));
  INFERD_ASSIGN(vocabulary.add_space_prefix, file.Bool(Key("add_space_prefix")));
  return vocabulary;
}

void CollectEnds(const GgufVocabulary& vocabulary, std::vector<std::int32_t>* eos_ids) {
  for (const auto& id : {vocabulary.eos_id, vocabulary.eot_id, vocabulary.eom_id}) {
    if (id) {
      eos_ids->push_back(*id);
    }
  }
  for (std::size_t i = 0; i < vocabulary.types.size(); ++i) {
    if ((vocabulary.types[i] == kControl || vocabulary.types[i] == kUserDefined) &&
        std::ranges::find(kEndTokens, vocabulary.tokens[i]) != kEndTokens.end()) {
      eos_ids->push_back(static_cast<std::int32_t>(i));
    }
  }
}

Result<std::string> Template(const GgufFile& file, const std::string& key) {
  INFERD_ASSIGN(auto text, file.String(key));
  if (text && text->size() > kMaxTemplateBytes) {
    return InvalidArgument("{}: key {} has {} bytes, the limit is {}",
                           file.path(),
                           key,
                           text->size(),
                           kMaxTemplateBytes);
  }
  return text.value_or("");
}

}  // namespace

Result<TokenizerFiles> ReadGgufTokenizer(const GgufFile& file, std::vector<std::int32_t>* eos_ids) {
  TokenizerFiles files;
  INFERD_ASSIGN(GgufVocabulary vocabulary, ReadVocabulary(file));
  CollectEnds(vocabulary, eos_ids);
  if (!vocabulary.tokens.empty()) {
    files.vocabulary = std::move(vocabulary);
  }
  std::vector<std::string_view> keys = file.Keys();
  std::ranges::sort(keys);
  for (const std::string_view key : keys) {
    if (key == kTemplate) {
      INFERD_ASSIGN(files.chat_template, Template(file, std::string(key)));
    } else if (key.starts_with(kTemplate) && key.size() > kTemplate.size() + 1 &&
               key[kTemplate.size()] == '.') {
      INFERD_ASSIGN(std::string text, Template(file, std::string(key)));
      files.named_templates.emplace_back(key.substr(kTemplate.size() + 1), std::move(text));
    }
  }
  return files;
}

Result<GenerationDefaults> ReadGgufGeneration(const GgufFile& file) {
  GenerationDefaults defaults;
  INFERD_ASSIGN(defaults.temperature, file.Float("general.sampling.temp"));
  INFERD_ASSIGN(defaults.top_p, file.Float("general.sampling.top_p"));
  INFERD_ASSIGN(defaults.min_p, file.Float("general.sampling.min_p"));
  INFERD_ASSIGN(defaults.repetition_penalty, file.Float("general.sampling.penalty_repeat"));
  INFERD_ASSIGN(const auto top_k, file.Int("general.sampling.top_k"));
  if (top_k) {
    defaults.top_k = static_cast<std::int32_t>(std::clamp<std::int64_t>(*top_k, 0, INT32_MAX));
  }
  return defaults;
}

}  // namespace inferd::store
