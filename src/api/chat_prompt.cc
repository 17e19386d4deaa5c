// SPDX-License-Identifier: Apache-2.0
#include "api/chat_prompt.h"

#include "api/chat_messages.h"
#include "api/generate_params.h"
#include "base/error.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

std::string_view Trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) {
    return {};
  }
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

/// Cuts what the template put behind the last message, so that the reply continues it.
Result<std::string> CutAfterFinalMessage(std::string rendered, const Json& messages, Fault* fault) {
  const auto& content = messages.back()["content"].get_ref<const std::string&>();
  std::string_view part = content;
  std::size_t at = rendered.rfind(part);
  if (at == std::string::npos || part.empty()) {
    part = Trim(content);
    at = rendered.rfind(part);
  }
  if (part.empty() || at == std::string::npos) {
    return FieldError(
        fault,
        "continue_final_message",
        "continue_final_message needs a last message whose text the chat template shows");
  }
  rendered.resize(at + part.size());
  return rendered;
}

}  // namespace

Result<std::vector<std::int32_t>> ChatPrompt(const ServerContext& context, const Fields& fields) {
  Fault* const fault = fields.fault();
  if (context.model.chat_template == nullptr) {
    return FieldError(
        fault,
        "messages",
        "The model has no chat template; use /v1/completions, or start the server with "
        "--chat-template FILE");
  }
  Json variables;
  INFERD_ASSIGN(variables["messages"], NormalizeMessages(fields));
  INFERD_ASSIGN(const bool continues, fields.BoolOr("continue_final_message", false));
  INFERD_ASSIGN(const bool generation_prompt, fields.BoolOr("add_generation_prompt", !continues));
  if (continues && generation_prompt) {
    return FieldError(fault,
                      "continue_final_message",
                      "continue_final_message and add_generation_prompt exclude each other");
  }
  variables["tools"] = nullptr;
  variables["add_generation_prompt"] = generation_prompt;
  if (const Json* const documents = fields.Find("documents")) {
    if (!documents->is_array()) {
      return FieldError(
          fault, "documents", "documents must be a list, not {}", documents->type_name());
    }
    variables["documents"] = *documents;
  }
  INFERD_ASSIGN(const auto effort, fields.String("reasoning_effort"));
  if (effort) {
    variables["reasoning_effort"] = *effort;
  }
  std::string kwargs;
  if (const Json* const given = fields.Find("chat_template_kwargs")) {
    if (!given->is_object()) {
      return FieldError(fault,
                        "chat_template_kwargs",
                        "chat_template_kwargs must be an object, not {}",
                        given->type_name());
    }
    kwargs = given->dump();
  }
  auto rendered = context.model.chat_template->Render(variables.dump(), kwargs);
  if (!rendered.ok()) {
    *fault = {"messages", "chat_template_error"};
    return rendered.error().WithContext("chat template");
  }
  std::string text = *std::move(rendered);
  if (continues) {
    INFERD_ASSIGN(text, CutAfterFinalMessage(std::move(text), variables["messages"], fault));
  }
  INFERD_ASSIGN(const bool add_special, fields.BoolOr("add_special_tokens", true));
  INFERD_ASSIGN(auto ids, EncodePrompt(context, text, add_special, "messages", fault));
  if (ids.empty()) {
    return FieldError(fault, "messages", "The messages make an empty prompt");
  }
  return ids;
}

}  // namespace inferd::api
