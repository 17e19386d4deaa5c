// SPDX-License-Identifier: Apache-2.0
// POST /tokenize: a prompt or chat messages to token ids, in vLLM's shape.
#include "api/chat/chat_request.h"
#include "api/core/fields.h"
#include "api/core/generate_params.h"
#include "api/core/json_parse.h"
#include "api/core/json_writer.h"
#include "api/openai/endpoints.h"

#include <nlohmann/json.hpp>

#include <string>

namespace inferd::api {

Result<Outcome> Tokenize(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  const Fields fields(body, fault);
  INFERD_TRY(CheckModel(context, fields));
  INFERD_ASSIGN(const bool strings, fields.BoolOr("return_token_strs", false));
  std::vector<std::int32_t> ids;
  if (fields.Find("messages") != nullptr) {
    ChatRequest chat;
    INFERD_TRY(ParseChatPrompt(fields, &chat));
    INFERD_ASSIGN(ids, ChatPrompt(context, chat, fault));
  } else {
    INFERD_ASSIGN(const auto prompt, fields.String("prompt"));
    if (!prompt) {
      return FieldError(fault, "prompt", "prompt or messages is needed");
    }
    INFERD_ASSIGN(const bool add_special, fields.BoolOr("add_special_tokens", true));
    INFERD_ASSIGN(ids,
                  context.model.tokenizer->Encode(
                      *prompt, {.add_special = add_special, .parse_special = true}));
  }
  HttpResponse response;
  response.body = R"({"count":)";
  AppendInt(static_cast<std::int64_t>(ids.size()), &response.body);
  response.body += R"(,"max_model_len":)";
  AppendInt(context.service.max_model_len(), &response.body);
  response.body += R"(,"tokens":[)";
  for (const auto id : ids) {
    AppendInt(id, &response.body);
    response.body += ',';
  }
  if (!ids.empty()) {
    response.body.pop_back();
  }
  response.body += R"(],"token_strs":)";
  if (!strings) {
    response.body += "null}";
    return Outcome(std::move(response));
  }
  response.body += '[';
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) {
      response.body += ',';
    }
    AppendQuoted(text::MakeTokenText(*context.model.tokenizer, ids[i]).token, &response.body);
  }
  response.body += "]}";
  return Outcome(std::move(response));
}

}  // namespace inferd::api
