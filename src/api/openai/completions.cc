// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions.
#include "api/core/fields.h"
#include "api/core/generate_params.h"
#include "api/core/json_parse.h"
#include "api/openai/completion_format.h"
#include "api/openai/completion_request.h"
#include "api/openai/endpoints.h"

#include <nlohmann/json.hpp>

#include <string>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::int64_t kDefaultMaxTokens = 16;  // OpenAI's

struct Prompts {
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<std::string> texts;  // for echo
};

/// A string, or ids (`path` names the value). Text gets BOS once if the model wants one; ids are
/// taken as they are.
Result<> AddPrompt(const ServerContext& context,
                   const Json& value,
                   const std::string& path,
                   bool add_special,
                   Fault* fault,
                   Prompts* prompts) {
  std::vector<std::int32_t> ids;
  std::string text;
  if (value.is_string()) {
    text = value.get<std::string>();
    INFERD_ASSIGN(ids, EncodePrompt(context, text, add_special, path, fault));
  } else {
    INFERD_ASSIGN(ids,
                  ParseIds(value, path, context.model.vocab_size, limits::kDetokenizeIds, fault));
    text = context.model.tokenizer->Decode(ids, false);
  }
  if (ids.empty()) {
    return FieldError(fault, path, "{} is empty; a prompt needs at least one token", path);
  }
  prompts->ids.push_back(std::move(ids));
  prompts->texts.push_back(std::move(text));
  return {};
}

Result<Prompts> ParsePrompts(const ServerContext& context, const Fields& fields) {
  const Json* const given = fields.Find("prompt");
  Fault* const fault = fields.fault();
  if (given == nullptr) {
    return FieldError(fault, "prompt", "prompt is missing");
  }
  INFERD_ASSIGN(const bool add_special, fields.BoolOr("add_special_tokens", true));
  Prompts prompts;
  const bool is_list = given->is_array() && !given->empty() && !given->front().is_number();
  if (!is_list) {
    if (!given->is_string() && !given->is_array()) {
      return FieldError(fault,
                        "prompt",
                        "prompt must be a string, a list of strings, or lists of token ids, not {}",
                        given->type_name());
    }
    INFERD_TRY(AddPrompt(context, *given, "prompt", add_special, fault, &prompts));
    return prompts;
  }
  if (given->size() > limits::kPrompts) {
    return FieldError(fault,
                      "prompt",
                      "prompt has {} entries; at most {} are allowed",
                      given->size(),
                      limits::kPrompts);
  }
  for (std::size_t i = 0; i < given->size(); ++i) {
    const Json& item = (*given)[i];
    const std::string path = fmt::format("prompt[{}]", i);
    if (item.type() != given->front().type() || (!item.is_string() && !item.is_array())) {
      return FieldError(fault,
                        path,
                        "prompt must hold strings only or lists of token ids only; {} is {}",
                        path,
                        item.type_name());
    }
    INFERD_TRY(AddPrompt(context, item, path, add_special, fault, &prompts));
  }
  return prompts;
}

}  // namespace

Result<GenerationSpec> ParseCompletion(const ServerContext& context, const Fields& fields) {
  Fault* const fault = fields.fault();
  INFERD_ASSIGN(GenerateParams params, ParseParams(context, fields));
  INFERD_ASSIGN(const bool echo, fields.BoolOr("echo", false));
  INFERD_ASSIGN(const auto logprobs, fields.Int(limits::kLogprobs));
  params.sampling.logprobs = static_cast<std::int32_t>(logprobs.value_or(-1));
  params.sampling.prompt_logprobs = echo ? params.sampling.logprobs : -1;
  INFERD_ASSIGN(const auto max_tokens, fields.Int(limits::kMaxTokensOrZero));
  if (max_tokens == 0 && !echo) {
    return FieldError(
        fault, "max_tokens", "max_tokens 0 makes sense with echo only; ask for at least 1");
  }
  GenerationSpec spec;
  leader::GenerateRequest prototype;
  INFERD_TRY(ApplyParams(context, params, &spec, &prototype));
  spec.echo = echo;
  // Nothing is asked of the model when only the prompt comes back.
  spec.generate = max_tokens != 0 || prototype.sampling.prompt_logprobs >= 0;
  INFERD_ASSIGN(Prompts prompts, ParsePrompts(context, fields));
  if (prompts.ids.size() * static_cast<std::size_t>(spec.n) > limits::kChoices) {
    return FieldError(fault,
                      "n",
                      "{} prompts with n = {} make more than {} choices",
                      prompts.ids.size(),
                      spec.n,
                      limits::kChoices);
  }
  spec.echoes = std::move(prompts.texts);
  INFERD_TRY(AddPrompts(context,
                        std::move(prompts.ids),
                        prototype,
                        max_tokens,
                        kDefaultMaxTokens,
                        "prompt",
                        &spec,
                        fault));
  return spec;
}

Result<Outcome> Completions(const ServerContext& context,
                            const HttpRequest& request,
                            Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  const Fields fields(body, fault);
  INFERD_TRY(CheckModel(context, fields));
  INFERD_ASSIGN(GenerationSpec spec, ParseCompletion(context, fields));
  spec.format = std::make_unique<CompletionFormat>(
      NewId("cmpl-"), context.model.name(), UnixNow(), spec.logprobs, context.model.tokenizer);
  return Outcome(std::make_unique<Generation>(std::move(spec)));
}

}  // namespace inferd::api
