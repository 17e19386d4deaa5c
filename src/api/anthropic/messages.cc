// SPDX-License-Identifier: Apache-2.0
// POST /v1/messages and /v1/messages/count_tokens.
#include "api/anthropic/endpoints.h"
#include "api/anthropic/message_format.h"
#include "api/anthropic/message_input.h"
#include "api/chat/chat_request.h"
#include "api/core/constraint.h"
#include "api/core/json_parse.h"
#include "api/core/json_writer.h"

#include <string>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

constexpr IntLimit kBudgetTokens{"budget_tokens", 1024, limits::kInt32Max};
constexpr IntLimit kMessageTopK{"top_k", 0, limits::kInt32Max};

/// Would change the answer, and is not supported.
constexpr std::string_view kRefused[] = {"container", "mcp_servers"};

Result<> RefuseUnsupported(const Fields& fields) {
  for (const std::string_view name : kRefused) {
    const Json* const value = fields.Find(name);
    if (value != nullptr && !value->empty()) {
      return NotSupported(fields.fault(), std::string(name));
    }
  }
  return {};
}

/// Thinking is off unless it is asked for.
Result<> ReadThinking(const Fields& fields, ChatRequest* chat) {
  bool enabled = false;
  if (const Json* const thinking = fields.Find("thinking")) {
    if (!thinking->is_object()) {
      return FieldError(
          fields.fault(), "thinking", "thinking must be an object, not {}", thinking->type_name());
    }
    const Fields inner(*thinking, fields.fault(), "thinking.");
    INFERD_ASSIGN(const auto type, inner.String("type"));
    if (!type || (*type != "enabled" && *type != "disabled" && *type != "adaptive")) {
      return FieldError(
          fields.fault(), "thinking.type", "thinking.type must be enabled, disabled or adaptive");
    }
    enabled = *type != "disabled";
    INFERD_ASSIGN(const auto budget, inner.Int(kBudgetTokens));
    chat->thinking_budget = enabled ? budget : std::nullopt;
  }
  chat->template_kwargs = enabled ? R"({"enable_thinking":true})" : R"({"enable_thinking":false})";
  return {};
}

/// `output_config`, and `output_format`, which is an older name of its `format`.
Result<> ReadOutputConfig(const ServerContext& context, const Fields& fields, ChatRequest* chat) {
  Fault* const fault = fields.fault();
  const Json* const older = fields.Find("output_format");
  if (older != nullptr) {
    INFERD_ASSIGN(chat->params.grammar, ReadFormat(context, *older, "output_format", fault));
  }
  const Json* const given = fields.Find("output_config");
  if (given == nullptr) {
    return {};
  }
  if (!given->is_object()) {
    return FieldError(
        fault, "output_config", "output_config must be an object, not {}", given->type_name());
  }
  const Fields config(*given, fault, "output_config.");
  INFERD_ASSIGN(chat->reasoning_effort, config.String("effort"));
  const Json* const format = config.Find("format");
  if (format == nullptr) {
    return {};
  }
  if (older != nullptr) {
    return FieldError(
        fault, "output_format", "output_format and output_config.format both say the format");
  }
  INFERD_ASSIGN(chat->params.grammar, ReadFormat(context, *format, "output_config.format", fault));
  return {};
}

/// The part of the request that makes the prompt.
Result<> ReadPrompt(const ServerContext& context, const Fields& fields, ChatRequest* chat) {
  INFERD_TRY(RefuseUnsupported(fields));
  INFERD_ASSIGN(chat->messages, ReadAnthropicMessages(fields));
  INFERD_ASSIGN(chat->tools, ReadAnthropicTools(fields));
  INFERD_TRY(CheckTools(context.model, chat->tools, fields.fault()));
  INFERD_TRY(ReadThinking(fields, chat));
  INFERD_TRY(ReadOutputConfig(context, fields, chat));
  // A last message of the assistant is the beginning of the reply.
  const Json& last = chat->messages.back();
  const bool continues = last["role"] == "assistant" && !last.contains("tool_calls") &&
                         !last["content"].get_ref<const std::string&>().empty();
  chat->continue_final_message = continues;
  chat->add_generation_prompt = !continues;
  return {};
}

Result<> ReadParams(const ServerContext& context, const Fields& fields, GenerateParams* params) {
  *params = DefaultParams(context.model);
  INFERD_ASSIGN(const auto max_tokens, fields.Int(limits::kMaxTokens));
  if (!max_tokens) {
    return FieldError(fields.fault(), "max_tokens", "max_tokens is missing");
  }
  params->max_tokens_bound = *max_tokens;
  INFERD_ASSIGN(const auto temperature, fields.Real(limits::kTemperature));
  INFERD_ASSIGN(const auto top_p, fields.Real(limits::kTopP));
  INFERD_ASSIGN(const auto top_k, fields.Int(kMessageTopK));
  params->sampling.temperature = temperature.value_or(params->sampling.temperature);
  params->sampling.top_p = top_p.value_or(params->sampling.top_p);
  params->sampling.top_k = static_cast<std::int32_t>(top_k.value_or(params->sampling.top_k));
  INFERD_ASSIGN(params->stop, ParseStops(fields, "stop_sequences"));
  if (const Json* const metadata = fields.Find("metadata"); metadata && metadata->is_object()) {
    INFERD_ASSIGN(auto user, Fields(*metadata, fields.fault(), "metadata.").String("user_id"));
    params->caller.user = UserKey(user.value_or(""));
  }
  INFERD_ASSIGN(params->stream, fields.BoolOr("stream", false));
  return {};
}

}  // namespace

Result<Outcome> Messages(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  const Fields fields(body, fault);
  INFERD_TRY(CheckModel(context, fields));
  ChatRequest chat;
  INFERD_TRY(ReadParams(context, fields, &chat.params));
  INFERD_TRY(ReadPrompt(context, fields, &chat));
  auto format = std::make_unique<MessageFormat>(
      NewId("msg_"), context.model.name(), chat.params.max_tokens_bound);
  INFERD_ASSIGN(auto generation, StartChat(context, chat, std::move(format), fault));
  return Outcome(std::move(generation));
}

Result<Outcome> CountMessageTokens(const ServerContext& context,
                                   const HttpRequest& request,
                                   Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  const Fields fields(body, fault);
  INFERD_TRY(CheckModel(context, fields));
  ChatRequest chat;
  INFERD_TRY(ReadPrompt(context, fields, &chat));
  INFERD_ASSIGN(const auto ids, ChatPrompt(context, chat, fault));
  HttpResponse response;
  response.body = R"({"input_tokens":)";
  AppendInt(static_cast<std::int64_t>(ids.size()), &response.body);
  response.body += '}';
  return Outcome(std::move(response));
}

}  // namespace inferd::api
