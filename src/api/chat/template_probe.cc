// SPDX-License-Identifier: Apache-2.0
#include "api/chat/template_probe.h"

#include <nlohmann/json.hpp>

#include <string>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

std::string RenderedCall(const text::ChatTemplate& chat_template, Json arguments) {
  const Json call = {{"id", "123456789"},
                     {"type", "function"},
                     {"function", {{"name", "probe"}, {"arguments", std::move(arguments)}}}};
  Json variables;
  variables["messages"] = {{{"role", "user"}, {"content", "hi"}},
                           {{"role", "assistant"}, {"content", ""}, {"tool_calls", {call}}}};
  variables["tools"] = nullptr;
  variables["add_generation_prompt"] = false;
  auto rendered = chat_template.Render(variables.dump());
  return rendered.ok() ? *std::move(rendered) : std::string();
}

std::string RenderedWithEffort(const text::ChatTemplate& chat_template, const char* effort) {
  Json variables;
  variables["messages"] = {{{"role", "user"}, {"content", "hi"}}};
  variables["tools"] = nullptr;
  variables["add_generation_prompt"] = true;
  variables["reasoning_effort"] = effort;
  auto rendered = chat_template.Render(variables.dump());
  return rendered.ok() ? *std::move(rendered) : std::string();
}

}  // namespace

bool KnowsReasoningEffort(const text::ChatTemplate& chat_template) {
  return RenderedWithEffort(chat_template, "low") != RenderedWithEffort(chat_template, "high");
}

bool WantsArgumentsAsText(const text::ChatTemplate& chat_template) {
  // A template that writes parameters one by one shows neither form, and needs the object.
  const std::string object = RenderedCall(chat_template, {{"needle", "straw"}});
  const bool shows_object =
      object.find("straw") != std::string::npos && object.find("{'needle'") == std::string::npos;
  if (shows_object) {
    return false;
  }
  const std::string json = R"({"needle": "straw"})";
  return RenderedCall(chat_template, json).find(json) != std::string::npos;
}

}  // namespace inferd::api
