// SPDX-License-Identifier: Apache-2.0
#include "api/responses/response_input.h"

#include "api/chat/chat_messages.h"
#include "api/core/generate_params.h"
#include "api/core/limits.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

/// Parts of text, each {"type", "text"}. `plain` is the type that a string becomes.
Result<Json> ReadParts(const Fields& item, std::string_view name, std::string_view plain) {
  const std::string path = item.Path(name);
  Fault* const fault = item.fault();
  const Json* const given = item.Find(name);
  if (given == nullptr) {
    return FieldError(fault, path, "{} is missing", path);
  }
  if (given->is_string()) {
    return Json::array({{{"type", plain}, {"text", *given}}});
  }
  if (!given->is_array()) {
    return FieldError(
        fault, path, "{} must be a string or a list of parts, not {}", path, given->type_name());
  }
  Json parts = Json::array();
  for (std::size_t i = 0; i < given->size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    if (!(*given)[i].is_object()) {
      return FieldError(fault, at, "{} must be an object, not {}", at, (*given)[i].type_name());
    }
    const Fields part((*given)[i], fault, at + ".");
    INFERD_ASSIGN(const std::string type, part.NeededString("type"));
    const bool refusal = type == "refusal";
    if (!refusal && type != "input_text" && type != "output_text" && type != "text" &&
        type != "reasoning_text" && type != "summary_text") {
      return FieldError(fault,
                        at + ".type",
                        "{}.type is `{}`; this model takes parts of text only",
                        at,
                        type.substr(0, 50));
    }
    INFERD_ASSIGN(std::string text, part.NeededString(refusal ? "refusal" : "text"));
    Json read = {{"type", type}};
    read[refusal ? "refusal" : "text"] = std::move(text);
    if (type == "output_text") {
      read["annotations"] = Json::array();
    }
    parts.push_back(std::move(read));
  }
  return parts;
}

Result<Json> ReadMessage(const Fields& item) {
  INFERD_ASSIGN(const std::string role, item.NeededString("role"));
  if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
    return FieldError(item.fault(),
                      item.Path("role"),
                      "{} must be user, assistant, system or developer",
                      item.Path("role"));
  }
  INFERD_ASSIGN(Json parts,
                ReadParts(item, "content", role == "assistant" ? "output_text" : "input_text"));
  return Json{{"type", "message"},
              {"id", NewId("msg_")},
              {"status", "completed"},
              {"role", role},
              {"content", std::move(parts)}};
}

Result<Json> ReadFunctionCall(const Fields& item) {
  INFERD_ASSIGN(std::string call_id, item.NeededString("call_id"));
  INFERD_ASSIGN(std::string name, item.NeededString("name"));
  INFERD_ASSIGN(std::string arguments, item.NeededString("arguments"));
  return Json{{"type", "function_call"},
              {"id", NewId("fc_")},
              {"status", "completed"},
              {"call_id", std::move(call_id)},
              {"name", std::move(name)},
              {"arguments", std::move(arguments)}};
}

Result<Json> ReadFunctionOutput(const Fields& item) {
  INFERD_ASSIGN(std::string call_id, item.NeededString("call_id"));
  INFERD_ASSIGN(Json parts, ReadParts(item, "output", "input_text"));
  const Json* const given = item.Find("output");
  return Json{{"type", "function_call_output"},
              {"id", NewId("fc_")},
              {"status", "completed"},
              {"call_id", std::move(call_id)},
              {"output", given->is_string() ? *given : std::move(parts)}};
}

Result<Json> ReadReasoning(const Fields& item) {
  Json read = {{"type", "reasoning"}, {"id", NewId("rs_")}, {"summary", Json::array()}};
  if (item.Find("summary") != nullptr) {
    INFERD_ASSIGN(read["summary"], ReadParts(item, "summary", "summary_text"));
  }
  if (item.Find("content") != nullptr) {
    INFERD_ASSIGN(read["content"], ReadParts(item, "content", "reasoning_text"));
  }
  return read;
}

Result<Json> ReadItem(const Fields& item) {
  INFERD_ASSIGN(const auto type, item.String("type"));
  Result<Json> read = Json();
  if (!type || *type == "message") {
    read = ReadMessage(item);
  } else if (*type == "function_call") {
    read = ReadFunctionCall(item);
  } else if (*type == "function_call_output") {
    read = ReadFunctionOutput(item);
  } else if (*type == "reasoning") {
    read = ReadReasoning(item);
  } else {
    return FieldError(item.fault(),
                      item.Path("type"),
                      "{} is `{}`; this server takes message, function_call, "
                      "function_call_output and reasoning",
                      item.Path("type"),
                      type->substr(0, 50));
  }
  if (read.ok()) {
    INFERD_ASSIGN(const auto id, item.String("id"));
    if (id && !id->empty()) {
      (*read)["id"] = *id;
    }
  }
  return read;
}

std::string TextOf(const Json& parts) {
  if (parts.is_string()) {
    return parts.get<std::string>();
  }
  std::string text;
  for (const Json& part : parts) {
    const auto piece = part.find(part["type"] == "refusal" ? "refusal" : "text");
    text += (text.empty() ? "" : "\n") + piece->get<std::string>();
  }
  return text;
}

}  // namespace

Result<Json> ReadInputItems(const Fields& fields) {
  Fault* const fault = fields.fault();
  const Json* const given = fields.Find("input");
  if (given != nullptr && given->is_string()) {
    const Json message = {{"role", "user"}, {"content", *given}};
    INFERD_ASSIGN(Json item, ReadMessage(Fields(message, fault)));
    return Json::array({std::move(item)});
  }
  if (given == nullptr || !given->is_array()) {
    return FieldError(fault, "input", "input must be a string or a list of items");
  }
  if (given->size() > limits::kMessages) {
    return FieldError(fault,
                      "input",
                      "input has {} items; at most {} are allowed",
                      given->size(),
                      limits::kMessages);
  }
  Json items = Json::array();
  for (std::size_t i = 0; i < given->size(); ++i) {
    const std::string path = fmt::format("input[{}]", i);
    if (!(*given)[i].is_object()) {
      return FieldError(fault, path, "{} must be an object, not {}", path, (*given)[i].type_name());
    }
    INFERD_ASSIGN(Json item, ReadItem(Fields((*given)[i], fault, path + ".")));
    items.push_back(std::move(item));
  }
  return items;
}

Json MessagesOf(const Json& items) {
  Json messages = Json::array();
  std::string reasoning;  // belongs to the assistant's message that follows it
  const auto assistant = [&]() -> Json& {
    if (messages.empty() || messages.back()["role"] != "assistant" || !reasoning.empty()) {
      messages.push_back({{"role", "assistant"}, {"content", ""}});
      if (!reasoning.empty()) {
        SetReasoning(std::exchange(reasoning, ""), &messages.back());
      }
    }
    return messages.back();
  };
  nlohmann::json names = nlohmann::json::object();  // of functions by call id
  for (const Json& item : items) {
    const std::string type = item["type"];
    if (type == "reasoning") {
      const auto content = item.find("content");
      reasoning += TextOf(content == item.end() ? item["summary"] : *content);
    } else if (type == "function_call") {
      Json arguments = Json::parse(item["arguments"].get<std::string>(), nullptr, false);
      if (!arguments.is_object()) {
        arguments = item["arguments"];
      }
      names[item["call_id"].get<std::string>()] = item["name"];
      assistant()["tool_calls"].push_back(
          {{"id", item["call_id"]},
           {"type", "function"},
           {"function", {{"name", item["name"]}, {"arguments", std::move(arguments)}}}});
    } else if (type == "function_call_output") {
      Json message = {
          {"role", "tool"}, {"tool_call_id", item["call_id"]}, {"content", TextOf(item["output"])}};
      if (const auto name = names.find(item["call_id"].get<std::string>()); name != names.end()) {
        message["name"] = *name;
      }
      messages.push_back(std::move(message));
    } else if (item["role"] == "assistant") {
      Json& message = assistant();
      auto& content = message["content"].get_ref<std::string&>();
      const std::string text = TextOf(item["content"]);
      content += (content.empty() || text.empty() ? "" : "\n") + text;
    } else {
      const bool system = item["role"] == "developer" || item["role"] == "system";
      messages.push_back(
          {{"role", system ? "system" : "user"}, {"content", TextOf(item["content"])}});
    }
  }
  return messages;
}

}  // namespace inferd::api
