// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions.
#include "api/core/constraint_wraps.h"
#include "api/core/fields.h"
#include "api/core/generate_params.h"
#include "api/core/json_parse.h"
#include "api/core/prompts.h"
#include "api/openai/completion_format.h"
#include "api/openai/completion_request.h"
#include "api/openai/endpoints.h"

#include <nlohmann/json.hpp>

#include <algorithm>
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
  if (fields.Find(limits::kThinkingBudget.name) != nullptr) {
    return FieldError(fault,
                      std::string(limits::kThinkingBudget.name),
                      "{} is for chats; a completion has no reasoning of its own",
                      limits::kThinkingBudget.name);
  }
  INFERD_TRY(RefuseTools(fields));
  INFERD_ASSIGN(GenerateParams params, ParseParams(context, fields));
  INFERD_ASSIGN(const bool echo, fields.BoolOr("echo", false));
  INFERD_ASSIGN(const auto logprobs, fields.Int(limits::kLogprobs));
  params.sampling.logprobs = static_cast<std::int32_t>(logprobs.value_or(-1));
  INFERD_ASSIGN(const auto max_tokens, fields.Int(limits::kMaxTokensOrZero));
  if (max_tokens == 0 && !echo && params.sampling.prompt_logprobs < 0) {
    return FieldError(fault,
                      "max_tokens",
                      "max_tokens 0 makes sense with echo or prompt_logprobs only; ask for at "
                      "least 1");
  }
  GenerationSpec spec;
  leader::GenerateRequest prototype;
  INFERD_TRY(ApplyParams(context, params, &spec, &prototype));
  if (prototype.constraint != nullptr) {
    ConstrainToAllowed(context.service.model().eos_ids, &prototype);
  }
  spec.echo = echo;
  if (echo && spec.logprobs) {
    spec.echo_top = params.sampling.logprobs;
    prototype.sampling.prompt_logprobs =
        std::max(prototype.sampling.prompt_logprobs, params.sampling.logprobs);
  }
  // Nothing is asked of the model when only the prompt comes back.
  spec.generate = max_tokens != 0 || prototype.sampling.prompt_logprobs >= 0;
  INFERD_ASSIGN(Prompts prompts,
                ParsePrompts(context, fields, "prompt", max_tokens.value_or(kDefaultMaxTokens)));
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
  spec.format =
      std::make_unique<CompletionFormat>(OpenAiReply{.id = NewId("cmpl-"),
                                                     .model = context.model.name(),
                                                     .created_s = UnixNow(),
                                                     .logprobs = spec.logprobs,
                                                     .report = spec.report,
                                                     .tokenizer = context.model.tokenizer});
  return Outcome(std::make_unique<Generation>(std::move(spec)));
}

}  // namespace inferd::api
