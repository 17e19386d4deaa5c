// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions.
#include "api/chat/chat_request.h"
#include "api/core/json_parse.h"
#include "api/openai/chat_format.h"
#include "api/openai/endpoints.h"

#include <utility>

namespace inferd::api {

Result<Outcome> ChatCompletions(const ServerContext& context,
                                const HttpRequest& request,
                                Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  const Fields fields(body, fault);
  INFERD_TRY(CheckModel(context, fields));
  INFERD_ASSIGN(const ChatRequest chat, ParseChatRequest(context, fields));
  auto format =
      std::make_unique<ChatFormat>(OpenAiReply{.id = NewId("chatcmpl-"),
                                               .model = context.model.name(),
                                               .created_s = UnixNow(),
                                               .logprobs = chat.params.sampling.logprobs >= 0,
                                               .tools = chat.tools.offered(),
                                               .report = chat.params.report,
                                               .tokenizer = context.model.tokenizer});
  INFERD_ASSIGN(auto generation, StartChat(context, chat, std::move(format), fault));
  return Outcome(std::move(generation));
}

}  // namespace inferd::api
