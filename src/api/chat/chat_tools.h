// SPDX-License-Identifier: Apache-2.0
// The tools of a chat request: what is offered, what must be called, what the parser has to know.
#pragma once

#include "api/core/fields.h"
#include "api/core/served_model.h"
#include "inferd/result.h"
#include "text/tool_shape.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

enum class ToolChoice : std::uint8_t { kAuto, kNone, kRequired, kNamed };

/// How an API writes a tool.
struct ToolForm {
  std::string_view type = "function";  // what its `type` says
  bool type_needed = true;
  std::string_view wrapper = "function";  // the object around name and schema; empty: the tool
  std::string_view schema = "parameters";
  bool schema_needed = false;
};
inline constexpr ToolForm kChatTool;
inline constexpr ToolForm kResponsesTool{.wrapper = ""};
inline constexpr ToolForm kAnthropicTool{.type = "custom",
                                         .type_needed = false,
                                         .wrapper = "",
                                         .schema = "input_schema",
                                         .schema_needed = true};
inline constexpr ToolForm kOllamaTool{.type_needed = false};

struct ChatTools {
  /// In the form of OpenAI's chats: templates expect it. As the client wrote it, where the client
  /// wrote that form. null: none.
  nlohmann::ordered_json list;
  ToolForm form;                        // in which the client wrote it
  std::vector<text::ToolShape> shapes;  // of each
  std::vector<bool> strict;             // of each
  ToolChoice choice = ToolChoice::kAuto;
  std::string named;  // kNamed
  bool parallel = true;

  bool one_call() const { return !parallel || choice == ToolChoice::kNamed; }
  bool offered() const { return !shapes.empty() && choice != ToolChoice::kNone; }
};

/// Checks the list `tools`.
Result<ChatTools> ReadTools(const nlohmann::ordered_json& list, const ToolForm& form, Fault* fault);

/// Path of a member of tool `i` as the client wrote it: "tools[0].function.strict".
std::string ToolPath(const ChatTools& tools, std::size_t i, std::string_view member);

/// From now on a call is needed: of the tool `named`, or of any when it is null. InvalidArgument
/// when there is none; `path` is that of the name.
Result<> ForceCall(const std::string* named,
                   const std::string& path,
                   Fault* fault,
                   ChatTools* tools);

/// `tools`, `tool_choice` and `parallel_tool_calls` in OpenAI's names.
Result<ChatTools> ParseTools(const Fields& fields, const ToolForm& form = kChatTool);

/// Refuses what this model cannot do with the tools.
Result<> CheckTools(const ServedModel& model, const ChatTools& tools, Fault* fault);

}  // namespace inferd::api
