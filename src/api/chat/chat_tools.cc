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

bool Find(const ChatTools& tools, std::string_view name) {
  return std::ranges::any_of(tools.shapes,
                             [&](const text::ToolShape& tool) { return tool.name == name; });
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

Result<> CheckType(const Fields& fields, const ToolForm& form) {
  INFERD_ASSIGN(const auto type, fields.String("type"));
  if (type ? *type == form.type : !form.type_needed) {
    return {};
  }
  return FieldError(fields.fault(),
                    fields.Path("type"),
                    "{} is `{}`; this server has no tools of its own, only those that the client "
                    "runs (type {})",
                    fields.Path("type"),
                    type.value_or("").substr(0, 50),
                    form.type);
}

Result<> CheckParameters(const Fields& function, const ToolForm& form, const Json** parameters) {
  const Json* const given = function.Find(form.schema);
  const std::string path = function.Path(form.schema);
  if (given == nullptr) {
    return form.schema_needed ? FieldError(function.fault(), path, "{} must be an object", path)
                              : Result<>();
  }
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

Result<> CheckName(const Fields& function, const std::string& name, const ChatTools& tools) {
  const std::string path = function.Path("name");
  if (!IsName(name)) {
    return FieldError(function.fault(),
                      path,
                      "{} must have 1 to {} letters, digits, underscores, dots or dashes",
                      path,
                      limits::kToolNameBytes);
  }
  if (Find(tools, name)) {
    return FieldError(
        function.fault(), path, "{}: there is another tool with the name `{}`", path, name);
  }
  return {};
}

Result<> ReadTool(const Json& tool, const std::string& path, Fault* fault, ChatTools* tools) {
  const ToolForm& form = tools->form;
  if (!tool.is_object()) {
    return FieldError(fault, path, "{} must be an object, not {}", path, tool.type_name());
  }
  const Fields fields(tool, fault, path + ".");
  INFERD_TRY(CheckType(fields, form));
  const Json* inner = &tool;
  std::string prefix = path + ".";
  if (!form.wrapper.empty()) {
    INFERD_ASSIGN(inner, Object(fields, form.wrapper));
    prefix = fields.Path(form.wrapper) + ".";
  }
  const Fields function(*inner, fault, prefix);
  INFERD_ASSIGN(const auto name, function.String("name"));
  INFERD_TRY(CheckName(function, name.value_or(""), *tools));
  INFERD_ASSIGN(const auto description, function.String("description"));
  INFERD_ASSIGN(const bool strict, function.BoolOr("strict", false));
  const Json none;
  const Json* parameters = &none;
  INFERD_TRY(CheckParameters(function, form, &parameters));
  if (const std::size_t bytes = tool.dump().size(); bytes > limits::kToolBytes) {
    return FieldError(
        fault, path, "{} has {} bytes; at most {} are allowed", path, bytes, limits::kToolBytes);
  }
  tools->shapes.push_back(text::MakeToolShape(*name, *parameters));
  tools->strict.push_back(strict);
  if (form.wrapper == kChatTool.wrapper) {
    tools->list.push_back(tool);
    return {};
  }
  Json rewritten = {{"name", *name}};
  if (description) {
    rewritten["description"] = *description;
  }
  if (!parameters->is_null()) {
    rewritten["parameters"] = *parameters;
  }
  tools->list.push_back({{"type", "function"}, {"function", std::move(rewritten)}});
  return {};
}

Result<> ReadNamedChoice(const Json& choice, Fault* fault, ChatTools* tools) {
  const Fields fields(choice, fault, "tool_choice.");
  INFERD_TRY(CheckType(fields, kChatTool));
  const Json* inner = &choice;
  std::string prefix = "tool_choice.";
  if (!tools->form.wrapper.empty()) {
    INFERD_ASSIGN(inner, Object(fields, tools->form.wrapper));
    prefix = fields.Path(tools->form.wrapper) + ".";
  }
  const Fields function(*inner, fault, prefix);
  INFERD_ASSIGN(const auto name, function.String("name"));
  const std::string named = name.value_or("");
  return ForceCall(&named, function.Path("name"), fault, tools);
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
  return choice.is_object() && !tools->shapes.empty()
             ? ReadNamedChoice(choice, fault, tools)
             : ForceCall(nullptr, "tool_choice", fault, tools);
}

}  // namespace

std::string ToolPath(const ChatTools& tools, std::size_t i, std::string_view member) {
  return fmt::format(
      "tools[{}].{}{}{}", i, tools.form.wrapper, tools.form.wrapper.empty() ? "" : ".", member);
}

Result<> ForceCall(const std::string* named,
                   const std::string& path,
                   Fault* fault,
                   ChatTools* tools) {
  if (tools->shapes.empty()) {
    return FieldError(fault, "tool_choice", "tool_choice asks for a call, but there are no tools");
  }
  tools->choice = named == nullptr ? ToolChoice::kRequired : ToolChoice::kNamed;
  if (named == nullptr) {
    return {};
  }
  if (!Find(*tools, *named)) {
    return FieldError(fault, path, "{} `{}` is none of the tools", path, named->substr(0, 100));
  }
  tools->named = *named;
  return {};
}

Result<ChatTools> ReadTools(const Json& list, const ToolForm& form, Fault* fault) {
  const std::string path = "tools";
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
  tools.form = form;
  for (std::size_t i = 0; i < list.size(); ++i) {
    INFERD_TRY(ReadTool(list[i], fmt::format("{}[{}]", path, i), fault, &tools));
  }
  return tools;
}

Result<ChatTools> ParseTools(const Fields& fields, const ToolForm& form) {
  ChatTools tools;
  tools.form = form;
  if (const Json* const list = fields.Find("tools")) {
    INFERD_ASSIGN(tools, ReadTools(*list, form, fields.fault()));
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
