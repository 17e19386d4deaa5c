// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions.
#include "api/chat_format.h"
#include "api/chat_prompt.h"
#include "api/endpoint.h"
#include "api/fields.h"
#include "api/generate_params.h"
#include "api/json_parse.h"

#include <nlohmann/json.hpp>

#include <limits>
#include <utility>

namespace inferd::api {
namespace {

Result<std::int32_t> ParseLogprobs(const Fields& fields) {
  INFERD_ASSIGN(const bool logprobs, fields.BoolOr("logprobs", false));
  INFERD_ASSIGN(const auto top, fields.Int(limits::kTopLogprobs));
  if (!logprobs && top.value_or(0) > 0) {
    return FieldError(fields.fault(), "top_logprobs", "top_logprobs needs logprobs true");
  }
  return logprobs ? static_cast<std::int32_t>(top.value_or(0)) : -1;
}

}  // namespace

Result<Outcome> ChatCompletions(const ServerContext& context,
                                const HttpRequest& request,
                                Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  const Fields fields(body, fault);
  INFERD_TRY(CheckModel(context, fields));
  GenerationSpec spec;
  leader::GenerateRequest prototype;
  INFERD_TRY(ParseCommon(context, fields, &spec, &prototype));
  INFERD_ASSIGN(const bool echo, fields.BoolOr("echo", false));
  if (echo) {
    return FieldError(fault, "echo", "echo is for /v1/completions only");
  }
  INFERD_ASSIGN(prototype.sampling.logprobs, ParseLogprobs(fields));
  spec.logprobs = prototype.sampling.logprobs >= 0;
  INFERD_ASSIGN(const auto max_tokens, fields.Int(limits::kMaxTokens));
  INFERD_ASSIGN(const auto max_completion_tokens, fields.Int(limits::kMaxCompletionTokens));
  INFERD_ASSIGN(auto prompt, ChatPrompt(context, fields));
  std::vector<std::vector<std::int32_t>> prompts;
  prompts.push_back(std::move(prompt));
  INFERD_TRY(AddPrompts(context,
                        std::move(prompts),
                        prototype,
                        max_completion_tokens ? max_completion_tokens : max_tokens,
                        limits::kInt32Max,
                        "messages",
                        &spec,
                        fault));
  spec.echoes.emplace_back();
  spec.format = std::make_unique<ChatFormat>(
      NewId("chatcmpl-"), context.model.name(), UnixNow(), spec.logprobs, context.model.tokenizer);
  return Outcome(std::make_unique<Generation>(std::move(spec)));
}

}  // namespace inferd::api
