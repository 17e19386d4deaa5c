// SPDX-License-Identifier: Apache-2.0
// POST /v1/responses.
#include "api/chat/chat_request.h"
#include "api/core/constraint.h"
#include "api/core/json_parse.h"
#include "api/core/metadata.h"
#include "api/core/owner.h"
#include "api/responses/endpoints.h"
#include "api/responses/response_format.h"
#include "api/responses/response_input.h"
#include "api/responses/response_store.h"

#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

constexpr IntLimit kMaxOutputTokens{"max_output_tokens", 1, limits::kInt32Max};

/// A parameter that would change the answer and is not supported; `idle` values ask for nothing.
struct Refused {
  std::string_view name;
  bool (*idle)(const Json& value);
};
bool Never(const Json& /*value*/) { return false; }
bool False(const Json& value) { return value == false; }
bool Zero(const Json& value) { return value == 0; }
bool Disabled(const Json& value) { return value == "disabled"; }
bool Empty(const Json& value) { return value.empty(); }
constexpr Refused kRefused[] = {{"background", False},
                                {"conversation", Never},
                                {"context_management", Empty},
                                {"prompt", Never},
                                {"top_logprobs", Zero},
                                {"truncation", Disabled}};

Result<> RefuseUnsupported(const Fields& fields) {
  for (const Refused& refused : kRefused) {
    const Json* const value = fields.Find(refused.name);
    if (value != nullptr && !refused.idle(*value)) {
      return NotSupported(fields.fault(), std::string(refused.name));
    }
  }
  if (const Json* const include = fields.Find("include")) {
    if (!include->is_array()) {
      return FieldError(
          fields.fault(), "include", "include must be a list, not {}", include->type_name());
    }
    for (std::size_t i = 0; i < include->size(); ++i) {
      if ((*include)[i] == "message.output_text.logprobs") {
        return NotSupported(fields.fault(), fmt::format("include[{}]", i));
      }
    }
  }
  return {};
}

/// An object member: nullptr when absent.
Result<const Json*> ObjectField(const Fields& fields, std::string_view name) {
  const Json* const value = fields.Find(name);
  if (value != nullptr && !value->is_object()) {
    return FieldError(fields.fault(),
                      fields.Path(name),
                      "{} must be an object, not {}",
                      fields.Path(name),
                      value->type_name());
  }
  return value;
}

Result<> ReadParams(const ServerContext& context, const Fields& fields, ChatRequest* chat) {
  GenerateParams& params = chat->params;
  params = DefaultParams(context.model);
  INFERD_ASSIGN(const auto max_tokens, fields.Int(kMaxOutputTokens));
  params.max_tokens_bound = max_tokens.value_or(limits::kInt32Max);
  INFERD_ASSIGN(const auto temperature, fields.Real(limits::kTemperature));
  INFERD_ASSIGN(const auto top_p, fields.Real(limits::kTopP));
  params.sampling.temperature = temperature.value_or(params.sampling.temperature);
  params.sampling.top_p = top_p.value_or(params.sampling.top_p);
  INFERD_ASSIGN(params.stream, fields.BoolOr("stream", false));
  INFERD_ASSIGN(params.caller, ParseCaller(fields));
  INFERD_ASSIGN(const Json* const reasoning, ObjectField(fields, "reasoning"));
  if (reasoning != nullptr) {
    INFERD_ASSIGN(chat->reasoning_effort,
                  Fields(*reasoning, fields.fault(), "reasoning.").String("effort"));
  }
  INFERD_ASSIGN(chat->tools, ParseTools(fields, kResponsesTool));
  INFERD_ASSIGN(const Json* const text, ObjectField(fields, "text"));
  if (text == nullptr) {
    return {};
  }
  const Fields inner(*text, fields.fault(), "text.");
  INFERD_ASSIGN(const auto verbosity, inner.String("verbosity"));
  if (verbosity.value_or("medium") != "medium") {
    return NotSupported(fields.fault(), "text.verbosity");
  }
  if (const Json* const format = inner.Find("format")) {
    INFERD_ASSIGN(params.grammar, ReadFormat(context, *format, "text.format", fields.fault()));
  }
  return {};
}

/// The items that precede this request's input: the earlier response's input and output.
Result<Json> Previous(const ServerContext& context, const std::string& id, Fault* fault) {
  const auto stored =
      context.responses == nullptr ? nullptr : context.responses->Get(id, OwnerOf(context));
  if (stored == nullptr) {
    *fault = {"previous_response_id", "previous_response_not_found"};
    return NotFound(
        "Previous response with id '{}' not found: it was never stored, deleted, or forgotten "
        "since "
        "this server keeps a bounded number; send the whole conversation as input",
        id.substr(0, 100));
  }
  if (stored->running) {
    return FieldError(fault,
                      "previous_response_id",
                      "previous_response_id names a response that is not complete yet");
  }
  Json items = Json::parse(stored->input_items);
  Json body = Json::parse(stored->body);
  for (Json& item : body["output"]) {
    items.push_back(std::move(item));
  }
  return items;
}

/// The request's tools with all members of a function: clients expect each of them.
Json EchoTools(const Fields& fields) {
  Json tools = Json::array();
  const Json* const given = fields.Find("tools");
  if (given == nullptr) {
    return tools;
  }
  for (const Json& tool : *given) {
    Json echo = {
        {"type", "function"}, {"name", ""}, {"description", nullptr}, {"parameters", nullptr}};
    echo["strict"] = false;
    for (auto& [name, value] : echo.items()) {
      const auto found = tool.find(name);
      if (found != tool.end() && !found->is_null()) {
        value = *found;
      }
    }
    tools.push_back(std::move(echo));
  }
  return tools;
}

/// Members of the response object that repeat the request, without the braces around them.
std::string Echo(const ServerContext& context, const Fields& fields, const ChatRequest& chat) {
  const auto given = [&](std::string_view name, Json otherwise) {
    const Json* const value = fields.Find(name);
    return value == nullptr ? std::move(otherwise) : *value;
  };
  const auto effort = chat.reasoning_effort;
  const Json echo = {
      {"instructions", given("instructions", nullptr)},
      {"max_output_tokens", given("max_output_tokens", nullptr)},
      {"max_tool_calls", given("max_tool_calls", nullptr)},
      {"metadata", given("metadata", Json::object())},
      {"model", context.model.name()},
      {"parallel_tool_calls", given("parallel_tool_calls", true)},
      {"previous_response_id", given("previous_response_id", nullptr)},
      {"prompt_cache_key", given("prompt_cache_key", nullptr)},
      {"reasoning", {{"effort", effort ? Json(*effort) : Json()}, {"summary", nullptr}}},
      {"safety_identifier", given("safety_identifier", nullptr)},
      {"service_tier", given("service_tier", "default")},
      {"store", given("store", true)},
      {"temperature", chat.params.sampling.temperature},
      {"text", given("text", {{"format", {{"type", "text"}}}})},
      {"tool_choice", given("tool_choice", "auto")},
      {"tools", EchoTools(fields)},
      {"top_logprobs", 0},
      {"top_p", chat.params.sampling.top_p},
      {"truncation", "disabled"},
      {"user", given("user", nullptr)}};
  const std::string text = echo.dump();
  return text.substr(1, text.size() - 2);
}

}  // namespace

Result<Outcome> CreateResponse(const ServerContext& context,
                               const HttpRequest& request,
                               Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  const Fields fields(body, fault);
  INFERD_TRY(CheckModel(context, fields));
  INFERD_TRY(RefuseUnsupported(fields));
  INFERD_TRY(ReadMetadata(fields));
  INFERD_ASSIGN(const bool store, fields.BoolOr("store", true));
  INFERD_ASSIGN(const auto instructions, fields.String("instructions"));
  INFERD_ASSIGN(const auto previous_id, fields.String("previous_response_id"));
  ChatRequest chat;
  INFERD_TRY(ReadParams(context, fields, &chat));
  INFERD_ASSIGN(Json own_items, ReadInputItems(fields));
  Json items = Json::array();
  if (previous_id) {
    INFERD_ASSIGN(items, Previous(context, *previous_id, fault));
  }
  for (Json& item : own_items) {
    items.push_back(std::move(item));
  }
  chat.messages = MessagesOf(items);
  if (instructions && !instructions->empty()) {
    Json system = {{"role", "system"}, {"content", *instructions}};
    chat.messages.insert(chat.messages.begin(), std::move(system));
  }
  if (chat.messages.empty()) {
    return FieldError(fault, "input", "input holds no message");
  }
  auto format =
      std::make_unique<ResponseFormat>(ResponseRequest{.id = NewId("resp_"),
                                                       .created_s = UnixNow(),
                                                       .echo = Echo(context, fields, chat),
                                                       .input_items = store ? items.dump() : "",
                                                       .owner = OwnerOf(context)},
                                       store ? context.responses : nullptr);
  auto generation = StartChat(context, chat, std::move(format), fault);
  if (!generation.ok()) {
    fault->param = fault->param == "messages" ? "input" : fault->param;
    return std::move(generation).error();
  }
  return Outcome(*std::move(generation));
}

}  // namespace inferd::api
