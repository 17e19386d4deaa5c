// SPDX-License-Identifier: Apache-2.0
// Chat templates: any text is compiled or refused, and rendered within its limits.
#include "target.h"
#include "text/chat_template.h"

#include <string>

namespace inferd::fuzz {
namespace {

constexpr std::string_view kVariables = R"json({
  "messages": [
    {"role": "system", "content": "Be \"kind\".\n"},
    {"role": "user", "content": "Zürich <|im_end|> 東京"},
    {"role": "assistant", "content": "", "tool_calls": [
      {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": [1, 2.5, null, true]}}}]},
    {"role": "tool", "tool_call_id": "a", "content": "{}"}],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
  "add_generation_prompt": true})json";

}  // namespace

void Look(std::string_view input) {
  const auto compiled = text::ChatTemplate::Compile(
      input, {.bos = "<s>", .eos = "</s>", .pad = std::nullopt, .unk = std::nullopt});
  if (!compiled.ok()) {
    return;
  }
  [[maybe_unused]] const auto rendered = (*compiled)->Render(kVariables, "", {.now_s = 0});
  [[maybe_unused]] const auto strange = (*compiled)->Render(input, input, {.now_s = 0});
  [[maybe_unused]] const bool mentions = (*compiled)->Mentions("tools");
}

}  // namespace inferd::fuzz
