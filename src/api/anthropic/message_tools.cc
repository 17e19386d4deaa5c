// SPDX-License-Identifier: Apache-2.0
#include "api/anthropic/message_input.h"

#include <nlohmann/json.hpp>

#include <string>

namespace inferd::api {
namespace {

Result<> ReadChoice(const Fields& choice, ChatTools* tools) {
  INFERD_ASSIGN(const std::string type, choice.NeededString("type"));
  INFERD_ASSIGN(const bool one_call, choice.BoolOr("disable_parallel_tool_use", false));
  tools->parallel = !one_call;
  if (type == "auto" || type == "none") {
    tools->choice = type == "auto" ? ToolChoice::kAuto : ToolChoice::kNone;
    return {};
  }
  if (type == "any") {
    return ForceCall(nullptr, "tool_choice", choice.fault(), tools);
  }
  if (type != "tool") {
    return FieldError(choice.fault(),
                      "tool_choice.type",
                      "tool_choice.type is `{}`; it must be auto, any, tool or none",
                      type.substr(0, 50));
  }
  INFERD_ASSIGN(const std::string name, choice.NeededString("name"));
  return ForceCall(&name, "tool_choice.name", choice.fault(), tools);
}

}  // namespace

Result<ChatTools> ReadAnthropicTools(const Fields& fields) {
  Fault* const fault = fields.fault();
  ChatTools tools;
  tools.form = kAnthropicTool;
  if (const auto* const given = fields.Find("tools")) {
    INFERD_ASSIGN(tools, ReadTools(*given, kAnthropicTool, fault));
  }
  const auto* const choice = fields.Find("tool_choice");
  if (choice == nullptr) {
    return tools;
  }
  if (!choice->is_object()) {
    return FieldError(
        fault, "tool_choice", "tool_choice must be an object, not {}", choice->type_name());
  }
  INFERD_TRY(ReadChoice(Fields(*choice, fault, "tool_choice."), &tools));
  return tools;
}

}  // namespace inferd::api
