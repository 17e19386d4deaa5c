// SPDX-License-Identifier: Apache-2.0
// POST /detokenize: token ids to text, in vLLM's shape.
#include "api/core/fields.h"
#include "api/core/generate_params.h"
#include "api/core/json_parse.h"
#include "api/core/json_writer.h"
#include "api/openai/endpoints.h"

#include <nlohmann/json.hpp>

namespace inferd::api {

Result<Outcome> Detokenize(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  const Fields fields(body, fault);
  INFERD_TRY(CheckModel(context, fields));
  const auto* const tokens = fields.Find("tokens");
  if (tokens == nullptr) {
    return FieldError(fault, "tokens", "tokens is missing");
  }
  INFERD_ASSIGN(
      const auto ids,
      ParseIds(*tokens, "tokens", context.model.vocab_size, limits::kDetokenizeIds, fault));
  INFERD_ASSIGN(const bool skip_special, fields.BoolOr("skip_special_tokens", false));
  HttpResponse response;
  response.body = R"({"prompt":)";
  AppendQuoted(context.model.tokenizer->Decode(ids, skip_special), &response.body);
  response.body += '}';
  return Outcome(std::move(response));
}

}  // namespace inferd::api
