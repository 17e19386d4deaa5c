// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions/render and /v1/completions/render: what a request would run, as token
// ids and sampling parameters, in vLLM's shape. Routers ask here for the ids that they route by.
#include "api/chat/chat_request.h"
#include "api/core/fields.h"
#include "api/core/generate_params.h"
#include "api/core/json_parse.h"
#include "api/openai/completion_request.h"
#include "api/openai/endpoints.h"

#include <nlohmann/json.hpp>

#include <string>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

Json SamplingOf(const GenerationSpec& spec,
                const leader::GenerateRequest& request,
                const Fields& fields) {
  const spec::SamplingParams& sampling = request.sampling;
  const Json* const seed = fields.Find("seed");
  const auto or_null = [](std::int32_t value) { return value < 0 ? Json() : Json(value); };
  return {{"n", request.n},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"repetition_penalty", sampling.repetition_penalty},
          {"temperature", sampling.temperature},
          {"top_p", sampling.top_p},
          {"top_k", sampling.top_k},
          {"min_p", sampling.min_p},
          {"seed", seed == nullptr ? Json() : *seed},
          {"stop", spec.stop_strings},
          {"stop_token_ids", request.stop_token_ids},
          {"ignore_eos", request.ignore_eos},
          {"max_tokens", request.max_tokens},
          {"min_tokens", request.min_tokens},
          {"logprobs", or_null(sampling.logprobs)},
          {"prompt_logprobs", or_null(sampling.prompt_logprobs)},
          {"skip_special_tokens", spec.skip_special},
          {"include_stop_str_in_output", spec.include_stop}};
}

Json Rendered(const ServerContext& context,
              const GenerationSpec& spec,
              const leader::GenerateRequest& request,
              std::string_view id_prefix,
              const Fields& fields) {
  const Json* const options = fields.Find("stream_options");
  return {{"request_id", NewId(id_prefix)},
          {"model", context.model.name()},
          {"token_ids", request.prompt},
          {"token_offsets", nullptr},
          {"features", nullptr},
          {"sampling_params", SamplingOf(spec, request, fields)},
          {"stream", spec.stream},
          {"stream_options", options == nullptr ? Json() : *options},
          {"cache_salt", request.cache_salt.empty() ? Json() : Json(request.cache_salt)},
          {"priority", request.priority},
          {"kv_transfer_params", nullptr}};
}

Result<> RefuseOffsets(const Fields& fields) {
  INFERD_ASSIGN(const bool offsets, fields.BoolOr("return_token_offsets", false));
  return offsets ? NotSupported(fields.fault(), "return_token_offsets") : Result<>();
}

}  // namespace

Result<Outcome> RenderChatPrompt(const ServerContext& context,
                                 const HttpRequest& request,
                                 Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  const Fields fields(body, fault);
  INFERD_TRY(CheckModel(context, fields));
  INFERD_TRY(RefuseOffsets(fields));
  INFERD_ASSIGN(const ChatRequest chat, ParseChatRequest(context, fields));
  INFERD_ASSIGN(const GenerationSpec spec, PrepareChat(context, chat, fault));
  HttpResponse response;
  response.body = Rendered(context, spec, spec.requests.front(), "chatcmpl-", fields).dump();
  return Outcome(std::move(response));
}

Result<Outcome> RenderCompletionPrompts(const ServerContext& context,
                                        const HttpRequest& request,
                                        Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  const Fields fields(body, fault);
  INFERD_TRY(CheckModel(context, fields));
  INFERD_TRY(RefuseOffsets(fields));
  INFERD_ASSIGN(const GenerationSpec spec, ParseCompletion(context, fields));
  Json prompts = Json::array();
  for (const leader::GenerateRequest& prompt : spec.requests) {
    prompts.push_back(Rendered(context, spec, prompt, "cmpl-", fields));
  }
  HttpResponse response;
  response.body = prompts.dump();
  return Outcome(std::move(response));
}

}  // namespace inferd::api
