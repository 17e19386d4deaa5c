// SPDX-License-Identifier: Apache-2.0
// The tools of a chat request: what is offered, what must be called, what the parser has to know.
#pragma once

#include "api/core/fields.h"
#include "api/core/served_model.h"
#include "inferd/result.h"
#include "text/tool_shape.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace inferd::api {

enum class ToolChoice : std::uint8_t { kAuto, kNone, kRequired, kNamed };

struct ChatTools {
  nlohmann::ordered_json list;          // in OpenAI's form, as the client wrote it; null: none
  std::vector<text::ToolShape> shapes;  // of each
  std::vector<bool> strict;             // of each
  ToolChoice choice = ToolChoice::kAuto;
  std::string named;  // kNamed
  bool parallel = true;

  bool one_call() const { return !parallel || choice == ToolChoice::kNamed; }
  bool offered() const { return !shapes.empty() && choice != ToolChoice::kNone; }
};

/// Checks a list of tools in OpenAI's form; errors name paths under `path`.
Result<ChatTools> ReadTools(const nlohmann::ordered_json& list,
                            const std::string& path,
                            Fault* fault);

/// `tools`, `tool_choice` and `parallel_tool_calls` in OpenAI's names.
Result<ChatTools> ParseTools(const Fields& fields);

/// Refuses what this model cannot do with the tools.
Result<> CheckTools(const ServedModel& model, const ChatTools& tools, Fault* fault);

}  // namespace inferd::api
