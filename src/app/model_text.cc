// SPDX-License-Identifier: Apache-2.0
#include "app/model_text.h"

#include "api/chat/template_probe.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "tenant/api_key.h"
#include "text/chat_template.h"
#include "text/dialect.h"
#include "text/tokenizer_config.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace inferd::app {
namespace {

constexpr std::uint64_t kMaxTemplateBytes = 1 << 20;

text::Vocabulary ToVocabulary(const store::GgufVocabulary& from) {
  text::Vocabulary to;
  to.model = from.model;
  to.pre = from.pre;
  to.architecture = from.architecture;
  to.tokens = from.tokens;
  to.scores = from.scores;
  to.types = from.types;
  to.merges = from.merges;
  to.bos_id = from.bos_id;
  to.eos_id = from.eos_id;
  to.unk_id = from.unk_id;
  to.add_bos = from.add_bos;
  to.add_eos = from.add_eos;
  to.add_space_prefix = from.add_space_prefix;
  return to;
}

Result<text::TokenizerConfig> ReadConfig(const store::TokenizerFiles& files) {
  if (files.tokenizer_config_json.empty()) {
    return text::TokenizerConfig();
  }
  return text::ParseTokenizerConfig(files.tokenizer_config_json);
}

std::optional<std::string> Literal(const text::Tokenizer& tokenizer,
                                   std::optional<std::int32_t> id) {
  if (!id || *id < 0 || *id >= tokenizer.vocab_size()) {
    return std::nullopt;
  }
  return std::string(tokenizer.TokenBytes(*id));
}

text::SpecialTokens Specials(const text::Tokenizer& tokenizer,
                             const text::TokenizerConfig& config,
                             const store::TokenizerFiles& files) {
  text::SpecialTokens specials{
      config.bos_token, config.eos_token, config.pad_token, config.unk_token};
  if (files.vocabulary) {
    specials.bos = Literal(tokenizer, files.vocabulary->bos_id);
    specials.eos = Literal(tokenizer, files.vocabulary->eos_id);
    specials.pad = Literal(tokenizer, files.vocabulary->pad_id);
    specials.unk = Literal(tokenizer, files.vocabulary->unk_id);
  }
  return specials;
}

Result<std::string> TemplateSource(const store::TokenizerFiles& files,
                                   const text::TokenizerConfig& config,
                                   const std::string& file) {
  if (!file.empty()) {
    return base::ReadFile(file, kMaxTemplateBytes);
  }
  return files.chat_template ? *files.chat_template : config.chat_template.value_or("");
}

/// Null when the model has none. A template that does not compile does not stop completions, so it
/// is only reported, unless the user gave it.
Result<std::shared_ptr<const text::ChatTemplate>> MakeTemplate(const std::string& source,
                                                               const text::SpecialTokens& specials,
                                                               const std::string& file) {
  if (source.empty()) {
    return std::shared_ptr<const text::ChatTemplate>();
  }
  auto compiled = text::ChatTemplate::Compile(source, specials);
  if (!compiled.ok() && file.empty()) {
    log::Warning("app",
                 "the model's chat template cannot be used ({}); chat requests are refused",
                 compiled.error().message());
    return std::shared_ptr<const text::ChatTemplate>();
  }
  if (!compiled.ok()) {
    return compiled.error().WithContext(file);
  }
  return compiled;
}

Result<> AddDialect(const ModelConfig& config,
                    const std::string& template_source,
                    api::ServedModel* served) {
  std::string users;
  if (!config.tool_dialects.empty()) {
    INFERD_ASSIGN(users, base::ReadFile(config.tool_dialects, kMaxTemplateBytes));
  }
  auto table = text::DialectTable::Load(users);
  if (!table.ok()) {
    return table.error().WithContext(config.tool_dialects);
  }
  INFERD_ASSIGN(served->dialect,
                table->Select(template_source, config.tool_call_parser, config.reasoning_parser));
  served->marker_tokens = text::MarkerTokens(*served->tokenizer, served->dialect);
  if (served->chat_template != nullptr) {
    served->arguments_as_text = api::WantsArgumentsAsText(*served->chat_template);
    served->template_knows_effort = api::KnowsReasoningEffort(*served->chat_template);
  }
  const auto& [calls, reasoning] = served->dialect;
  log::Info("app",
            "tool calls: {}; reasoning: {}",
            calls == nullptr ? "none" : calls->name,
            reasoning == nullptr ? "none" : reasoning->name);
  return {};
}

/// Tells one set of files from another, wherever they lie, without reading them whole: their names,
/// sizes, heads and tails.
std::string Fingerprint(const store::Model& model) {
  constexpr std::size_t kPart = 64 << 10;
  constexpr std::size_t kShownBytes = 6;
  std::string sample;
  for (const base::MappedFile& file : model.tensors.files()) {
    const std::string& path = file.path();
    const auto bytes = file.bytes();
    const std::size_t part = std::min(kPart, bytes.size());
    sample += path.substr(path.rfind('/') + 1) + '\n' + std::to_string(bytes.size()) + '\n';
    sample.append(reinterpret_cast<const char*>(bytes.data()), part);
    sample.append(reinterpret_cast<const char*>(bytes.data()) + bytes.size() - part, part);
  }
  const tenant::KeyDigest digest = tenant::DigestOf(sample);
  std::string hex;
  for (std::size_t i = 0; i < kShownBytes; ++i) {
    hex += fmt::format("{:02x}", digest[i]);
  }
  return hex;
}

}  // namespace

Result<std::shared_ptr<const text::Tokenizer>> MakeTokenizer(const store::TokenizerFiles& files) {
  if (!files.tokenizer_json.empty()) {
    INFERD_ASSIGN(const text::TokenizerConfig config, ReadConfig(files));
    return text::Tokenizer::FromJson(files.tokenizer_json, {config.bos_token, config.eos_token});
  }
  if (files.vocabulary) {
    return text::Tokenizer::FromVocab(ToVocabulary(*files.vocabulary));
  }
  return FailedPrecondition(
      "the model has no tokenizer: neither tokenizer.json nor a GGUF vocabulary");
}

Result<std::shared_ptr<const api::ServedModel>> MakeServedModel(const store::Model& model,
                                                                const ModelConfig& config) {
  auto served = std::make_shared<api::ServedModel>();
  INFERD_ASSIGN(served->tokenizer, MakeTokenizer(model.tokenizer));
  INFERD_ASSIGN(const text::TokenizerConfig text_config, ReadConfig(model.tokenizer));
  const text::SpecialTokens specials = Specials(*served->tokenizer, text_config, model.tokenizer);
  INFERD_ASSIGN(const std::string source,
                TemplateSource(model.tokenizer, text_config, config.chat_template));
  INFERD_ASSIGN(served->chat_template, MakeTemplate(source, specials, config.chat_template));
  INFERD_TRY(AddDialect(config, source, served.get()));
  served->specials = specials;
  served->trust_request_chat_template = config.trust_request_chat_template;
  served->force_include_usage = config.force_include_usage;
  served->grammars = std::make_shared<text::GrammarCache>(served->tokenizer, model.spec.eos_ids);
  served->version = config.model_version.empty() ? Fingerprint(model) : config.model_version;
  for (const char c : served->version) {
    if (static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7f) {
      return InvalidArgument("--model-version may hold printable ASCII without blanks only");
    }
  }
  served->names = std::make_shared<api::ModelNames>(config.served_model_name.empty()
                                                        ? std::vector<std::string>{config.model}
                                                        : config.served_model_name);
  const store::GenerationDefaults& defaults = model.generation;
  served->defaults = {defaults.temperature,
                      defaults.top_p,
                      defaults.min_p,
                      defaults.top_k,
                      defaults.repetition_penalty};
  served->created_s = std::chrono::duration_cast<std::chrono::seconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  for (std::int32_t id = 0; id < served->tokenizer->vocab_size(); ++id) {
    served->longest_token_bytes =
        std::max(served->longest_token_bytes, served->tokenizer->TokenBytes(id).size());
  }
  served->vocab_size = model.spec.vocab_size;
  return std::shared_ptr<const api::ServedModel>(std::move(served));
}

}  // namespace inferd::app
