// SPDX-License-Identifier: Apache-2.0
#include "api/chat/chat_tools.h"

#include "api/core/limits.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= limits::kToolNameBytes &&
         std::ranges::all_of(name, [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' ||
                  c == '.';
         });
}

/// The object under `name`; InvalidArgument when it is missing or something else.
Result<const Json*> Object(const Fields& fields, std::string_view name) {
  const Json* const value = fields.Find(name);
  if (value == nullptr || !value->is_object()) {
    return FieldError(fields.fault(),
                      fields.Path(name),
                      "{} must be an object, not {}",
                      fields.Path(name),
                      value == nullptr ? "missing" : value->type_name());
  }
  return value;
}

Result<> CheckType(const Fields& fields) {
  INFERD_ASSIGN(const auto type, fields.String("type"));
  if (type.value_or("") != "function") {
    return FieldError(fields.fault(),
                      fields.Path("type"),
                      "{} is `{}`; this server takes tools of type function only",
                      fields.Path("type"),
                      type.value_or("").substr(0, 50));
  }
  return {};
}

Result<> CheckParameters(const Fields& function, const Json** parameters) {
  const Json* const given = function.Find("parameters");
  if (given == nullptr) {
    return {};
  }
  const std::string path = function.Path("parameters");
  if (!given->is_object()) {
    return FieldError(function.fault(),
                      path,
                      "{} must be a JSON schema of an object, not {}",
                      path,
                      given->type_name());
  }
  const auto type = given->find("type");
  if (type != given->end() && *type != "object") {
    return FieldError(function.fault(),
                      path + ".type",
                      "{}.type must be object: the arguments of a call are one",
                      path);
  }
  const auto properties = given->find("properties");
  if (properties != given->end() && !properties->is_object()) {
    return FieldError(
        function.fault(), path + ".properties", "{}.properties must be an object", path);
  }
  *parameters = given;
  return {};
}

Result<> ReadTool(const Json& tool, const std::string& path, Fault* fault, ChatTools* tools) {
  if (!tool.is_object()) {
    return FieldError(fault, path, "{} must be an object, not {}", path, tool.type_name());
  }
  const Fields fields(tool, fault, path + ".");
  INFERD_TRY(CheckType(fields));
  INFERD_ASSIGN(const Json* const inner, Object(fields, "function"));
  const Fields function(*inner, fault, path + ".function.");
  INFERD_ASSIGN(const auto name, function.String("name"));
  if (!IsName(name.value_or(""))) {
    return FieldError(fault,
                      function.Path("name"),
                      "{} must have 1 to {} letters, digits, underscores, dots or dashes",
                      function.Path("name"),
                      limits::kToolNameBytes);
  }
  if (std::ranges::any_of(tools->shapes, [&](const auto& known) { return known.name == *name; })) {
    return FieldError(fault,
                      function.Path("name"),
                      "{}: there is another tool with the name `{}`",
                      function.Path("name"),
                      *name);
  }
  INFERD_TRY(function.String("description"));
  INFERD_ASSIGN(const bool strict, function.BoolOr("strict", false));
  const Json none;
  const Json* parameters = &none;
  INFERD_TRY(CheckParameters(function, &parameters));
  if (const std::size_t bytes = tool.dump().size(); bytes > limits::kToolBytes) {
    return FieldError(
        fault, path, "{} has {} bytes; at most {} are allowed", path, bytes, limits::kToolBytes);
  }
  tools->shapes.push_back(text::MakeToolShape(*name, *parameters));
  tools->strict.push_back(strict);
  return {};
}

Result<> ReadNamedChoice(const Json& choice, Fault* fault, ChatTools* tools) {
  const Fields fields(choice, fault, "tool_choice.");
  INFERD_TRY(CheckType(fields));
  INFERD_ASSIGN(const Json* const inner, Object(fields, "function"));
  const Fields function(*inner, fault, "tool_choice.function.");
  INFERD_ASSIGN(const auto name, function.String("name"));
  const bool known = std::ranges::any_of(
      tools->shapes, [&](const text::ToolShape& tool) { return tool.name == name.value_or(""); });
  if (!known) {
    return FieldError(fault,
                      "tool_choice.function.name",
                      "tool_choice.function.name `{}` is none of the tools",
                      name.value_or("").substr(0, 100));
  }
  tools->choice = ToolChoice::kNamed;
  tools->named = *name;
  return {};
}

Result<> ReadChoice(const Json& choice, Fault* fault, ChatTools* tools) {
  if (choice == "auto" || choice == "none") {
    tools->choice = choice == "auto" ? ToolChoice::kAuto : ToolChoice::kNone;
    return {};
  }
  if (choice != "required" && !choice.is_object()) {
    return FieldError(
        fault, "tool_choice", "tool_choice must be auto, none, required or name a function");
  }
  if (tools->shapes.empty()) {
    return FieldError(fault, "tool_choice", "tool_choice asks for a call, but there are no tools");
  }
  if (choice.is_object()) {
    return ReadNamedChoice(choice, fault, tools);
  }
  tools->choice = ToolChoice::kRequired;
  return {};
}

}  // namespace

Result<ChatTools> ReadTools(const Json& list, const std::string& path, Fault* fault) {
  if (!list.is_array()) {
    return FieldError(fault, path, "{} must be a list, not {}", path, list.type_name());
  }
  if (list.size() > limits::kTools) {
    return FieldError(fault,
                      path,
                      "{} has {} entries; at most {} are allowed",
                      path,
                      list.size(),
                      limits::kTools);
  }
  ChatTools tools;
  for (std::size_t i = 0; i < list.size(); ++i) {
    INFERD_TRY(ReadTool(list[i], fmt::format("{}[{}]", path, i), fault, &tools));
  }
  if (!list.empty()) {
    tools.list = list;
  }
  return tools;
}

Result<ChatTools> ParseTools(const Fields& fields) {
  ChatTools tools;
  if (const Json* const list = fields.Find("tools")) {
    INFERD_ASSIGN(tools, ReadTools(*list, "tools", fields.fault()));
  }
  if (const Json* const choice = fields.Find("tool_choice")) {
    INFERD_TRY(ReadChoice(*choice, fields.fault(), &tools));
  }
  INFERD_ASSIGN(tools.parallel, fields.BoolOr("parallel_tool_calls", true));
  return tools;
}

Result<> CheckTools(const ServedModel& model, const ChatTools& tools, Fault* fault) {
  if (!tools.offered()) {
    return {};
  }
  if (model.dialect.calls == nullptr) {
    *fault = {"tools", "unsupported_parameter"};
    return InvalidArgument(
        "This model's chat template shows no way to call tools; start the server with "
        "--tool-call-parser NAME to say how it does");
  }
  return {};
}

}  // namespace inferd::api
