// SPDX-License-Identifier: Apache-2.0
#include "api/chat/chat_messages.h"

#include "api/core/limits.h"

#include <nlohmann/json.hpp>

#include <string>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

Result<std::string> JoinParts(const Json& parts, const std::string& path, Fault* fault) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    if (!parts[i].is_object()) {
      return FieldError(
          fault, at, "{} must be an object with type and text, not {}", at, parts[i].type_name());
    }
    const Fields part(parts[i], fault, at + ".");
    INFERD_ASSIGN(const auto type, part.String("type"));
    if (!type || *type != "text") {
      return FieldError(fault,
                        at + ".type",
                        "{}.type is `{}`; this model takes parts of type text only",
                        at,
                        type.value_or("").substr(0, 50));
    }
    INFERD_ASSIGN(const auto piece, part.String("text"));
    if (!piece) {
      return FieldError(fault, at + ".text", "{}.text is missing", at);
    }
    text += (i == 0 ? "" : "\n") + *piece;
  }
  return text;
}

Result<> NormalizeContent(const std::string& role,
                          const std::string& path,
                          Fault* fault,
                          Json* message) {
  const auto it = message->find("content");
  const bool absent = it == message->end() || it->is_null();
  if (absent) {
    const auto calls = message->find("tool_calls");
    if (role != "assistant" || calls == message->end() || calls->empty()) {
      return FieldError(fault, path + ".content", "{}.content is missing", path);
    }
    (*message)["content"] = "";
    return {};
  }
  if (it->is_string()) {
    return {};
  }
  if (!it->is_array()) {
    return FieldError(fault,
                      path + ".content",
                      "{}.content must be a string or a list of parts, not {}",
                      path,
                      it->type_name());
  }
  INFERD_ASSIGN(std::string text, JoinParts(*it, path + ".content", fault));
  *it = std::move(text);
  return {};
}

/// Templates write arguments as an object; clients send them as JSON text.
Result<> NormalizeToolCalls(const std::string& path, Fault* fault, Json* message) {
  const auto calls = message->find("tool_calls");
  if (calls == message->end() || calls->is_null()) {
    return {};
  }
  if (!calls->is_array()) {
    return FieldError(fault,
                      path + ".tool_calls",
                      "{}.tool_calls must be a list, not {}",
                      path,
                      calls->type_name());
  }
  for (std::size_t i = 0; i < calls->size(); ++i) {
    Json& call = (*calls)[i];
    const std::string at = fmt::format("{}.tool_calls[{}]", path, i);
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object() ||
        !call["function"].contains("name") || !call["function"]["name"].is_string()) {
      return FieldError(
          fault, at, "{} must be an object with function.name and function.arguments", at);
    }
    Json& arguments = call["function"]["arguments"];
    if (arguments.is_string()) {
      Json parsed = Json::parse(arguments.get_ref<const std::string&>(), nullptr, false);
      if (parsed.is_object()) {
        arguments = std::move(parsed);
      }
    } else if (arguments.is_null()) {
      arguments = Json::object();
    } else if (!arguments.is_object()) {
      return FieldError(fault,
                        at + ".function.arguments",
                        "{}.function.arguments must be a string or an object",
                        at);
    }
  }
  return {};
}

Result<> NormalizeReasoning(const std::string& path, Fault* fault, Json* message) {
  const Fields fields(*message, fault, path + ".");
  INFERD_ASSIGN(auto reasoning, fields.String("reasoning"));
  INFERD_ASSIGN(auto content, fields.String("reasoning_content"));
  if (reasoning.has_value() != content.has_value()) {
    SetReasoning(reasoning ? *std::move(reasoning) : *std::move(content), message);
  }
  return {};
}

}  // namespace

void SetReasoning(std::string reasoning, Json* message) {
  (*message)["reasoning"] = reasoning;
  (*message)["reasoning_content"] = std::move(reasoning);
}

Result<const Json*> MessageList(const Fields& fields) {
  Fault* const fault = fields.fault();
  const Json* const given = fields.Find("messages");
  if (given == nullptr || !given->is_array() || given->empty()) {
    return FieldError(fault, "messages", "messages must be a list with at least one message");
  }
  if (given->size() > limits::kMessages) {
    return FieldError(fault,
                      "messages",
                      "messages has {} entries; at most {} are allowed",
                      given->size(),
                      limits::kMessages);
  }
  return given;
}

Result<Json> NormalizeMessages(const Fields& fields) {
  Fault* const fault = fields.fault();
  INFERD_ASSIGN(const Json* const given, MessageList(fields));
  Json messages = *given;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    Json& message = messages[i];
    if (!message.is_object()) {
      return FieldError(fault, path, "{} must be an object, not {}", path, message.type_name());
    }
    INFERD_ASSIGN(auto role, Fields(message, fault, path + ".").String("role"));
    if (!role || (*role != "system" && *role != "developer" && *role != "user" &&
                  *role != "assistant" && *role != "tool")) {
      return FieldError(fault,
                        path + ".role",
                        "{}.role must be system, developer, user, assistant or tool",
                        path);
    }
    INFERD_TRY(NormalizeContent(*role, path, fault, &message));
    INFERD_TRY(NormalizeToolCalls(path, fault, &message));
    INFERD_TRY(NormalizeReasoning(path, fault, &message));
    if (*role == "developer") {
      message["role"] = "system";
    }
  }
  return messages;
}

}  // namespace inferd::api
