// SPDX-License-Identifier: Apache-2.0
// POST /api/generate.
#include "api/chat/chat_request.h"
#include "api/core/json_parse.h"
#include "api/core/json_writer.h"
#include "api/ollama/endpoints.h"
#include "api/ollama/ollama_format.h"
#include "api/ollama/ollama_params.h"

#include <utility>

namespace inferd::api {
namespace {

/// A prompt that is taken as it is, without the chat template.
Result<std::unique_ptr<Generation>> StartRaw(const ServerContext& context,
                                             const GenerateParams& params,
                                             std::string_view prompt,
                                             std::unique_ptr<ReplyFormat> format,
                                             Fault* fault) {
  GenerationSpec spec;
  leader::GenerateRequest prototype;
  INFERD_TRY(ApplyParams(context, params, &spec, &prototype));
  std::vector<std::vector<std::int32_t>> prompts(1);
  INFERD_ASSIGN(prompts.front(), EncodePrompt(context, prompt, true, "prompt", fault));
  INFERD_TRY(AddPrompts(context,
                        std::move(prompts),
                        prototype,
                        params.max_tokens,
                        params.max_tokens_bound,
                        "prompt",
                        &spec,
                        fault));
  spec.echoes.emplace_back();
  spec.format = std::move(format);
  return std::make_unique<Generation>(std::move(spec));
}

}  // namespace

Result<Outcome> OllamaGenerate(const ServerContext& context,
                               const HttpRequest& request,
                               Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  const Fields fields(body, fault);
  INFERD_TRY(CheckOllamaModel(context, fields));
  ChatRequest chat;
  INFERD_TRY(ReadOllamaParams(context, fields, &chat));
  INFERD_ASSIGN(const auto prompt, fields.String("prompt"));
  INFERD_ASSIGN(const auto system, fields.String("system"));
  INFERD_ASSIGN(const bool raw, fields.BoolOr("raw", false));
  if (prompt.value_or("").empty()) {  // asks only that the model be loaded, which it is
    HttpResponse loaded;
    loaded.body = R"({"model":)";
    AppendQuoted(context.model.name(), &loaded.body);
    loaded.body += R"(,"created_at":")" + OllamaTimeNow() +
                   R"(","response":"","done_reason":"load","done":true})";
    return Outcome(std::move(loaded));
  }
  auto format =
      std::make_unique<OllamaFormat>(OllamaFormat::Shape::kGenerate, context.model.name());
  if (raw || context.model.chat_template == nullptr) {
    INFERD_ASSIGN(auto generation,
                  StartRaw(context, chat.params, *prompt, std::move(format), fault));
    return Outcome(std::move(generation));
  }
  chat.messages = nlohmann::ordered_json::array();
  if (!system.value_or("").empty()) {
    chat.messages.push_back({{"role", "system"}, {"content", *system}});
  }
  chat.messages.push_back({{"role", "user"}, {"content", *prompt}});
  auto generation = StartChat(context, chat, std::move(format), fault);
  if (!generation.ok()) {
    fault->param = fault->param == "messages" ? "prompt" : fault->param;
    return std::move(generation).error();
  }
  return Outcome(*std::move(generation));
}

}  // namespace inferd::api
