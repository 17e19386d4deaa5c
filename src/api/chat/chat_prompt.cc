// SPDX-License-Identifier: Apache-2.0
// From a chat's messages to its prompt.
#include "api/chat/chat_request.h"
#include "base/error.h"
#include "text/white_space.h"

#include <string_view>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

/// Cuts what the template put behind the last message, so that the reply continues it.
Result<ChatText> CutAfterFinalMessage(std::string rendered, const Json& messages, Fault* fault) {
  const auto& content = messages.back()["content"].get_ref<const std::string&>();
  std::string_view part = content;
  std::size_t at = rendered.rfind(part);
  if (at == std::string::npos || part.empty()) {
    part = text::Trim(content);
    at = rendered.rfind(part);
  }
  if (part.empty() || at == std::string::npos) {
    return FieldError(
        fault,
        "continue_final_message",
        "continue_final_message needs a last message whose text the chat template shows");
  }
  rendered.resize(at + part.size());
  return ChatText{std::move(rendered), part.size()};
}

/// For templates that write arguments of past calls as they come.
Json WithArgumentsAsText(Json messages) {
  for (Json& message : messages) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) {
      continue;
    }
    for (Json& call : *calls) {
      Json& arguments = call["function"]["arguments"];
      if (!arguments.is_string()) {
        arguments = arguments.dump();
      }
    }
  }
  return messages;
}

/// The request's own template where that is allowed, else the model's; null: there is none.
Result<std::shared_ptr<const text::ChatTemplate>> TemplateOf(const ServedModel& model,
                                                             const ChatRequest& chat,
                                                             Fault* fault) {
  if (!chat.chat_template) {
    return model.chat_template;
  }
  if (!model.trust_request_chat_template) {
    return FieldError(fault,
                      "chat_template",
                      "This server renders with its model's chat template only; start it with "
                      "--trust-request-chat-template to let requests bring their own");
  }
  auto compiled = text::ChatTemplate::Compile(*chat.chat_template, model.specials);
  if (!compiled.ok()) {
    return FieldError(
        fault, "chat_template", "chat_template does not compile: {}", compiled.error().message());
  }
  return compiled;
}

}  // namespace

Result<ChatText> RenderChat(const ServerContext& context, const ChatRequest& chat, Fault* fault) {
  INFERD_ASSIGN(const auto chat_template, TemplateOf(context.model, chat, fault));
  if (chat_template == nullptr) {
    return FieldError(
        fault,
        "messages",
        "The model has no chat template; use /v1/completions, or start the server with "
        "--chat-template FILE");
  }
  Json variables;
  variables["messages"] =
      context.model.arguments_as_text ? WithArgumentsAsText(chat.messages) : chat.messages;
  // What the model does not see it cannot call.
  variables["tools"] = chat.tools.offered() ? chat.tools.list : Json(nullptr);
  variables["add_generation_prompt"] = chat.add_generation_prompt;
  if (!chat.documents.is_null()) {
    variables["documents"] = chat.documents;
  }
  if (chat.reasoning_effort) {
    variables["reasoning_effort"] = *chat.reasoning_effort;
  }
  auto rendered = chat_template->Render(variables.dump(), chat.template_kwargs);
  if (!rendered.ok()) {
    *fault = {"messages", "chat_template_error"};
    return rendered.error().WithContext("chat template");
  }
  if (chat.continue_final_message) {
    return CutAfterFinalMessage(*std::move(rendered), chat.messages, fault);
  }
  return ChatText{*std::move(rendered), 0};
}

Result<std::vector<std::int32_t>> EncodeChat(const ServerContext& context,
                                             const ChatRequest& chat,
                                             const ChatText& rendered,
                                             Fault* fault) {
  INFERD_ASSIGN(
      auto ids,
      EncodePrompt(context, rendered.text, chat.add_special_tokens, "messages", fault, chat.keep));
  if (ids.empty()) {
    return FieldError(fault, "messages", "The messages make an empty prompt");
  }
  return ids;
}

Result<std::vector<std::int32_t>> ChatPrompt(const ServerContext& context,
                                             const ChatRequest& chat,
                                             Fault* fault) {
  INFERD_ASSIGN(const ChatText rendered, RenderChat(context, chat, fault));
  return EncodeChat(context, chat, rendered, fault);
}

}  // namespace inferd::api
