// SPDX-License-Identifier: Apache-2.0
// POST /api/chat.
#include "api/chat/chat_messages.h"
#include "api/chat/chat_request.h"
#include "api/core/json_parse.h"
#include "api/core/json_writer.h"
#include "api/ollama/endpoints.h"
#include "api/ollama/ollama_format.h"
#include "api/ollama/ollama_params.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

Result<Json> ReadCall(const Json& given, const std::string& path, Fault* fault) {
  const Json* const function =
      given.is_object() && given.contains("function") ? &given["function"] : nullptr;
  if (function == nullptr || !function->is_object() || !function->contains("name") ||
      !(*function)["name"].is_string() || !function->contains("arguments") ||
      !(*function)["arguments"].is_object()) {
    return FieldError(
        fault, path, "{} must have function.name and function.arguments, an object", path);
  }
  INFERD_ASSIGN(auto id, Fields(given, fault, path + ".").String("id"));
  return Json{
      {"id", id.value_or("")},
      {"type", "function"},
      {"function", {{"name", (*function)["name"]}, {"arguments", (*function)["arguments"]}}}};
}

Result<Json> ReadCalls(const Json& given, const std::string& path, Fault* fault) {
  if (!given.is_array()) {
    return FieldError(fault, path, "{} must be a list, not {}", path, given.type_name());
  }
  Json calls = Json::array();
  for (std::size_t i = 0; i < given.size(); ++i) {
    INFERD_ASSIGN(Json call, ReadCall(given[i], fmt::format("{}[{}]", path, i), fault));
    calls.push_back(std::move(call));
  }
  return calls;
}

/// Ollama's clients may leave ids out, which templates need: each result then belongs to the first
/// call of its name that has none yet. The ids made here are alike for like conversations, so that
/// prompts are, and have nine letters and digits, as some templates want them.
void PairCallsWithResults(Json* messages) {
  std::vector<Json> open;
  int made = 0;
  for (Json& message : *messages) {
    if (message.contains("tool_calls")) {
      open.clear();
      for (Json& call : message["tool_calls"]) {
        if (call["id"] == "") {
          call["id"] = fmt::format("call{:05}", made++);
        }
        open.push_back(call);
      }
    }
    if (message["role"] != "tool") {
      continue;
    }
    const auto found = std::ranges::find_if(open, [&](const Json& call) {
      return message.contains("tool_call_id") ? call["id"] == message["tool_call_id"]
             : message.contains("name")       ? call["function"]["name"] == message["name"]
                                              : true;
    });
    if (found != open.end()) {
      message["tool_call_id"] = (*found)["id"];
      message["name"] = (*found)["function"]["name"];
      open.erase(found);
    }
  }
}

Result<Json> ReadMessage(const Fields& message) {
  Fault* const fault = message.fault();
  INFERD_ASSIGN(const auto role, message.String("role"));
  if (!role || (*role != "system" && *role != "user" && *role != "assistant" && *role != "tool")) {
    return FieldError(fault,
                      message.Path("role"),
                      "{} must be system, user, assistant or tool",
                      message.Path("role"));
  }
  INFERD_ASSIGN(const auto content, message.String("content"));
  const Json* const images = message.Find("images");
  if (images != nullptr && !images->empty()) {
    return FieldError(fault,
                      message.Path("images"),
                      "{} is not empty, but this model takes text only",
                      message.Path("images"));
  }
  Json read = {{"role", *role}, {"content", content.value_or("")}};
  if (const Json* const calls = message.Find("tool_calls"); calls != nullptr && !calls->empty()) {
    INFERD_ASSIGN(read["tool_calls"], ReadCalls(*calls, message.Path("tool_calls"), fault));
  } else if (!content) {
    return FieldError(fault, message.Path("content"), "{} is missing", message.Path("content"));
  }
  INFERD_ASSIGN(auto thinking, message.String("thinking"));
  if (thinking && !thinking->empty()) {
    SetReasoning(*std::move(thinking), &read);
  }
  INFERD_ASSIGN(auto tool_name, message.String("tool_name"));
  if (tool_name) {
    read["name"] = *std::move(tool_name);
  }
  INFERD_ASSIGN(auto call_id, message.String("tool_call_id"));
  if (call_id && !call_id->empty()) {
    read["tool_call_id"] = *std::move(call_id);
  }
  return read;
}

Result<Json> ReadMessages(const Fields& fields) {
  Fault* const fault = fields.fault();
  const Json* const given = fields.Find("messages");
  Json messages = Json::array();
  if (given == nullptr) {
    return messages;
  }
  if (!given->is_array() || given->size() > limits::kMessages) {
    return FieldError(
        fault, "messages", "messages must be a list of at most {} messages", limits::kMessages);
  }
  for (std::size_t i = 0; i < given->size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    if (!(*given)[i].is_object()) {
      return FieldError(fault, path, "{} must be an object, not {}", path, (*given)[i].type_name());
    }
    INFERD_ASSIGN(Json message, ReadMessage(Fields((*given)[i], fault, path + ".")));
    messages.push_back(std::move(message));
  }
  PairCallsWithResults(&messages);
  return messages;
}

}  // namespace

Result<Outcome> OllamaChat(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  const Fields fields(body, fault);
  INFERD_TRY(CheckOllamaModel(context, fields));
  ChatRequest chat;
  INFERD_TRY(ReadOllamaParams(context, fields, &chat));
  if (const Json* const tools = fields.Find("tools")) {
    INFERD_ASSIGN(chat.tools, ReadTools(*tools, kOllamaTool, fault));
  }
  INFERD_ASSIGN(chat.messages, ReadMessages(fields));
  if (chat.messages.empty()) {  // asks only that the model be loaded, which it is
    HttpResponse loaded;
    loaded.body = R"({"model":)";
    AppendQuoted(context.model.name(), &loaded.body);
    loaded.body += R"(,"created_at":")" + OllamaTimeNow() +
                   R"(","message":{"role":"assistant","content":""},"done_reason":"load",)"
                   R"("done":true})";
    return Outcome(std::move(loaded));
  }
  auto format = std::make_unique<OllamaFormat>(OllamaFormat::Shape::kChat, context.model.name());
  INFERD_ASSIGN(auto generation, StartChat(context, chat, std::move(format), fault));
  return Outcome(std::move(generation));
}

}  // namespace inferd::api
