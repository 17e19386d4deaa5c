// SPDX-License-Identifier: Apache-2.0
// POST /v1/embeddings: the final hidden state of each input's last token, scaled to length 1.
#include "api/core/fields.h"
#include "api/core/generate_params.h"
#include "api/core/json_parse.h"
#include "api/core/prompts.h"
#include "api/openai/embedding_format.h"
#include "api/openai/embedding_request.h"
#include "api/openai/endpoints.h"
#include "base/error.h"

#include <nlohmann/json.hpp>

#include <utility>
#include <vector>

namespace inferd::api {
namespace {

Result<bool> IsBase64(const Fields& fields) {
  INFERD_ASSIGN(const auto format, fields.String("encoding_format"));
  if (format && *format != "float" && *format != "base64") {
    return FieldError(fields.fault(), "encoding_format", "encoding_format must be float or base64");
  }
  return format == "base64";
}

}  // namespace

Result<EmbeddingRequest> ParseEmbedding(const ServerContext& context, const Fields& fields) {
  EmbeddingRequest request;
  const IntLimit dimensions_limit{"dimensions", 1, context.service.model().hidden_size};
  INFERD_ASSIGN(const auto dimensions, fields.Int(dimensions_limit));
  request.dimensions = static_cast<std::size_t>(dimensions.value_or(0));
  INFERD_ASSIGN(Prompts prompts, ParsePrompts(context, fields, "input", 0));

  GenerateParams params;
  INFERD_ASSIGN(params.caller, ParseCaller(fields));
  leader::GenerateRequest prototype;
  INFERD_TRY(ApplyParams(context, params, &request.spec, &prototype));
  prototype.embed = true;
  request.spec.echoes.resize(prompts.ids.size());
  INFERD_TRY(AddPrompts(
      context, std::move(prompts.ids), prototype, 0, 0, "input", &request.spec, fields.fault()));
  return request;
}

Result<Outcome> Embeddings(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  const Fields fields(body, fault);
  INFERD_TRY(CheckModel(context, fields));
  INFERD_ASSIGN(const bool base64, IsBase64(fields));
  INFERD_ASSIGN(EmbeddingRequest embedding, ParseEmbedding(context, fields));
  embedding.spec.format =
      std::make_unique<EmbeddingFormat>(context.model.name(), base64, embedding.dimensions);
  return Outcome(std::make_unique<Generation>(std::move(embedding.spec)));
}

}  // namespace inferd::api
