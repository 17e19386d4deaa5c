// SPDX-License-Identifier: Apache-2.0
// A chat request in the one form that every protocol's adapter fills in, and the way from it to a
// running generation.
#pragma once

#include "api/chat/chat_tools.h"
#include "api/core/context.h"
#include "api/core/fields.h"
#include "api/core/generate_params.h"
#include "api/core/generation.h"
#include "inferd/result.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace inferd::api {

struct ChatRequest {
  /// As NormalizeMessages() makes them: role, text content, tool_calls with arguments as objects.
  nlohmann::ordered_json messages;
  nlohmann::ordered_json documents;  // a list, or null
  ChatTools tools;
  bool include_reasoning = true;  // false: it is made, but not answered
  std::optional<std::string> reasoning_effort;
  std::optional<std::int64_t>
      thinking_budget;                       // tokens of reasoning; absent: reasoning_effort says
  std::string template_kwargs;               // a JSON object as text; empty: none
  std::optional<std::string> chat_template;  // in place of the model's own
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool add_special_tokens = true;
  std::optional<std::int64_t> keep;  // the prompt's last tokens; absent: all
  GenerateParams params;
};

/// The part of a chat request that makes its prompt, in OpenAI's and vLLM's names.
Result<> ParseChatPrompt(const Fields& fields, ChatRequest* chat);

/// All of a chat request in OpenAI's and vLLM's names.
Result<ChatRequest> ParseChatRequest(const ServerContext& context, const Fields& fields);

/// A rendered prompt.
struct ChatText {
  std::string text;
  std::size_t continued_bytes = 0;  // its last bytes are a message that the reply continues
};
Result<ChatText> RenderChat(const ServerContext& context, const ChatRequest& chat, Fault* fault);

/// Renders the model's template and tokenises. The prompt begins with BOS once if the model wants
/// one, whether or not the template prints it.
Result<std::vector<std::int32_t>> ChatPrompt(const ServerContext& context,
                                             const ChatRequest& chat,
                                             Fault* fault);

/// The same in two steps: tokenises what RenderChat() made.
Result<std::vector<std::int32_t>> EncodeChat(const ServerContext& context,
                                             const ChatRequest& chat,
                                             const ChatText& rendered,
                                             Fault* fault);

/// What runs the chat, without a format; errors name OpenAI's fields.
Result<GenerationSpec> PrepareChat(const ServerContext& context,
                                   const ChatRequest& chat,
                                   Fault* fault);

/// A generation that answers the chat in the given format; errors name OpenAI's fields.
Result<std::unique_ptr<Generation>> StartChat(const ServerContext& context,
                                              const ChatRequest& chat,
                                              std::unique_ptr<ReplyFormat> format,
                                              Fault* fault);

}  // namespace inferd::api
