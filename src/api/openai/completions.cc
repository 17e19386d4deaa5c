// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions.
#include "api/core/fields.h"
#include "api/core/generate_params.h"
#include "api/core/json_parse.h"
#include "api/core/prompts.h"
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

/// Tools are for chats: a prompt has no template that would show them.
Result<> RefuseTools(const Fields& fields) {
  const Json* const tools = fields.Find("tools");
  const Json* const choice = fields.Find("tool_choice");
  const bool has_tools = tools != nullptr && !(tools->is_array() && tools->empty());
  if (!has_tools && (choice == nullptr || *choice == "none")) {
    return {};
  }
  const char* const param = has_tools ? "tools" : "tool_choice";
  fields.fault()->code = "unsupported_parameter";
  return FieldError(
      fields.fault(), param, "{} is for chats; use /v1/chat/completions or /v1/responses", param);
}

}  // namespace

Result<GenerationSpec> ParseCompletion(const ServerContext& context, const Fields& fields) {
  Fault* const fault = fields.fault();
  INFERD_TRY(RefuseTools(fields));
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
  INFERD_ASSIGN(Prompts prompts, ParsePrompts(context, fields, "prompt"));
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
