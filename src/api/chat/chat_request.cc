// SPDX-License-Identifier: Apache-2.0
#include "api/chat/chat_request.h"

#include "api/chat/call_constraint.h"
#include "api/chat/chat_messages.h"
#include "api/chat/thinking_budget.h"
#include "api/core/constraint_wraps.h"
#include "api/core/prompt_cut.h"
#include "text/dialect_parser.h"

#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

/// Room that truncate_prompt_tokens -1 leaves when the request does not say how much it needs.
constexpr std::int64_t kReservedOutput = 16;

Result<std::int32_t> ParseLogprobs(const Fields& fields) {
  INFERD_ASSIGN(const bool logprobs, fields.BoolOr("logprobs", false));
  INFERD_ASSIGN(const auto top, fields.Int(limits::kTopLogprobs));
  if (!logprobs && top.value_or(0) > 0) {
    return FieldError(fields.fault(), "top_logprobs", "top_logprobs needs logprobs true");
  }
  return logprobs ? static_cast<std::int32_t>(top.value_or(0)) : -1;
}

/// Only what the model's dialect can tell apart costs anything: without tools and reasoning there
/// is no parser.
void AddParsers(const ServedModel& model,
                const ChatRequest& chat,
                const ChatText& rendered,
                GenerationSpec* spec) {
  text::ParserOptions options{.dialect = model.dialect, .reasoning = chat.include_reasoning};
  if (chat.tools.offered()) {
    options.tools = chat.tools.shapes;
    options.max_calls = chat.tools.one_call() ? 1 : 0;
  } else {
    options.dialect.calls = nullptr;
  }
  spec->parsers = text::MakeParsers(std::move(options), rendered.text, rendered.continued_bytes);
  if (spec->parsers != nullptr) {
    spec->marker_tokens = model.marker_tokens;
  }
}

/// Adds what the tools ask for, and keeps structured output out of reasoning.
Result<> Constrain(const ServerContext& context,
                   const ChatRequest& chat,
                   bool in_reasoning,
                   leader::GenerateRequest* prototype,
                   Fault* fault) {
  if (in_reasoning && chat.params.grammar != nullptr) {
    prototype->constraint =
        MakeConstraint(chat.params.grammar, context.model.tokenizer, AfterReasoning(context.model));
  }
  INFERD_ASSIGN(auto constraint, ConstrainCalls(context, chat.tools, in_reasoning, fault));
  if (constraint == nullptr) {
    return {};
  }
  if (prototype->constraint != nullptr) {
    return FieldError(fault,
                      "tool_choice",
                      "tool_choice and strict tools cannot be combined with structured output");
  }
  prototype->constraint = std::move(constraint);
  return {};
}

}  // namespace

Result<> ParseChatPrompt(const Fields& fields, ChatRequest* chat) {
  Fault* const fault = fields.fault();
  INFERD_ASSIGN(chat->messages, NormalizeMessages(fields));
  INFERD_ASSIGN(chat->continue_final_message, fields.BoolOr("continue_final_message", false));
  INFERD_ASSIGN(chat->add_generation_prompt,
                fields.BoolOr("add_generation_prompt", !chat->continue_final_message));
  if (chat->continue_final_message && chat->add_generation_prompt) {
    return FieldError(fault,
                      "continue_final_message",
                      "continue_final_message and add_generation_prompt exclude each other");
  }
  if (const Json* const documents = fields.Find("documents")) {
    if (!documents->is_array()) {
      return FieldError(
          fault, "documents", "documents must be a list, not {}", documents->type_name());
    }
    chat->documents = *documents;
  }
  INFERD_ASSIGN(chat->tools, ParseTools(fields));
  INFERD_ASSIGN(chat->reasoning_effort, fields.String("reasoning_effort"));
  if (const Json* const given = fields.Find("chat_template_kwargs")) {
    if (!given->is_object()) {
      return FieldError(fault,
                        "chat_template_kwargs",
                        "chat_template_kwargs must be an object, not {}",
                        given->type_name());
    }
    chat->template_kwargs = given->dump();
  } else if (chat->reasoning_effort == "none") {
    chat->template_kwargs = R"({"enable_thinking":false})";  // for templates that can switch it off
  }
  INFERD_ASSIGN(chat->chat_template, fields.String("chat_template"));
  INFERD_ASSIGN(chat->add_special_tokens, fields.BoolOr("add_special_tokens", true));
  return {};
}

Result<ChatRequest> ParseChatRequest(const ServerContext& context, const Fields& fields) {
  ChatRequest chat;
  INFERD_ASSIGN(chat.params, ParseParams(context, fields));
  INFERD_ASSIGN(const bool echo, fields.BoolOr("echo", false));
  if (echo) {
    return FieldError(fields.fault(), "echo", "echo is for /v1/completions only");
  }
  INFERD_ASSIGN(chat.params.sampling.logprobs, ParseLogprobs(fields));
  INFERD_ASSIGN(const auto max_tokens, fields.Int(limits::kMaxTokens));
  INFERD_ASSIGN(const auto max_completion_tokens, fields.Int(limits::kMaxCompletionTokens));
  chat.params.max_tokens = max_completion_tokens ? max_completion_tokens : max_tokens;
  INFERD_TRY(ParseChatPrompt(fields, &chat));
  INFERD_ASSIGN(chat.keep,
                ParsePromptCut(context, fields, chat.params.max_tokens.value_or(kReservedOutput)));
  INFERD_ASSIGN(chat.thinking_budget, fields.Int(limits::kThinkingBudget));
  INFERD_ASSIGN(chat.include_reasoning, fields.BoolOr("include_reasoning", true));
  return chat;
}

Result<GenerationSpec> PrepareChat(const ServerContext& context,
                                   const ChatRequest& chat,
                                   Fault* fault) {
  GenerationSpec spec;
  leader::GenerateRequest prototype;
  INFERD_TRY(ApplyParams(context, chat.params, &spec, &prototype));
  std::vector<std::vector<std::int32_t>> prompts(1);
  INFERD_TRY(CheckTools(context.model, chat.tools, fault));
  INFERD_ASSIGN(const ChatText rendered, RenderChat(context, chat, fault));
  INFERD_ASSIGN(prompts.front(), EncodeChat(context, chat, rendered, fault));
  AddParsers(context.model, chat, rendered, &spec);
  const bool in_reasoning = spec.parsers != nullptr && spec.parsers->Make()->in_reasoning();
  INFERD_TRY(Constrain(context, chat, in_reasoning, &prototype, fault));
  if (prototype.constraint != nullptr) {
    ConstrainToAllowed(context.service.model().eos_ids, &prototype);
  }
  INFERD_TRY(LimitReasoning(context, chat, spec, &prototype));
  INFERD_TRY(AddPrompts(context,
                        std::move(prompts),
                        prototype,
                        chat.params.max_tokens,
                        chat.params.max_tokens_bound,
                        "messages",
                        &spec,
                        fault));
  spec.echoes.emplace_back();
  return spec;
}

Result<std::unique_ptr<Generation>> StartChat(const ServerContext& context,
                                              const ChatRequest& chat,
                                              std::unique_ptr<ReplyFormat> format,
                                              Fault* fault) {
  INFERD_ASSIGN(GenerationSpec spec, PrepareChat(context, chat, fault));
  spec.format = std::move(format);
  return std::make_unique<Generation>(std::move(spec));
}

}  // namespace inferd::api
