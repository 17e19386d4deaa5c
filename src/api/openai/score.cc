// SPDX-License-Identifier: Apache-2.0
// POST /v1/score and /v1/rerank, in vLLM's and Jina's shapes: a decoder compares texts by the
// cosine of their embeddings.
#include "api/core/fields.h"
#include "api/core/generate_params.h"
#include "api/core/json_parse.h"
#include "api/core/prompts.h"
#include "api/openai/endpoints.h"
#include "api/openai/score_format.h"
#include "base/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

/// A generation whose choice k is the embedding of prompt k.
Result<Outcome> EmbedAll(const ServerContext& context,
                         std::vector<std::vector<std::int32_t>> prompts,
                         std::unique_ptr<ReplyFormat> format,
                         std::string_view param,
                         Fault* fault) {
  GenerationSpec spec;
  leader::GenerateRequest prototype;
  INFERD_TRY(ApplyParams(context, GenerateParams(), &spec, &prototype));
  prototype.embed = true;
  spec.echoes.resize(prompts.size());
  INFERD_TRY(AddPrompts(context, std::move(prompts), prototype, 0, 0, param, &spec, fault));
  spec.format = std::move(format);
  return Outcome(std::make_unique<Generation>(std::move(spec)));
}

/// One text with each of the others, or texts in pairs.
Result<TextPairs> PairUp(std::size_t first, std::size_t second, Fault* fault) {
  if (first != 1 && first != second) {
    return FieldError(fault,
                      "text_2",
                      "text_1 has {} texts and text_2 {}: give one text, or as many in both",
                      first,
                      second);
  }
  TextPairs pairs;
  for (std::size_t i = 0; i < second; ++i) {
    pairs.emplace_back(first == 1 ? 0 : i, first + i);
  }
  return pairs;
}

/// Documents may come as {"text": ...}.
Result<Json> PlainDocuments(const Fields& fields) {
  const Json* const given = fields.Find("documents");
  if (given == nullptr || !given->is_array() || given->empty()) {
    return FieldError(
        fields.fault(), "documents", "documents must be a list with at least one text");
  }
  Json documents = *given;
  for (Json& document : documents) {
    if (document.is_object() && document.contains("text")) {
      document = Json(document["text"]);
    }
  }
  return documents;
}

}  // namespace

Result<Outcome> Score(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  const Fields fields(body, fault);
  INFERD_TRY(CheckModel(context, fields));
  INFERD_ASSIGN(Prompts first, ParsePrompts(context, fields, "text_1", 0));
  INFERD_ASSIGN(Prompts second, ParsePrompts(context, fields, "text_2", 0));
  INFERD_ASSIGN(TextPairs pairs, PairUp(first.ids.size(), second.ids.size(), fault));
  std::move(second.ids.begin(), second.ids.end(), std::back_inserter(first.ids));
  return EmbedAll(context,
                  std::move(first.ids),
                  std::make_unique<ScoreFormat>(context.model.name(), std::move(pairs)),
                  "text_2",
                  fault);
}

Result<Outcome> Rerank(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  INFERD_ASSIGN(auto body, ParseJsonObject(request.body, fault));
  const Fields fields(body, fault);
  INFERD_TRY(CheckModel(context, fields));
  INFERD_ASSIGN(const auto query, fields.String("query"));
  if (!query) {
    return FieldError(fault, "query", "query is missing");
  }
  INFERD_ASSIGN(const auto top_n, fields.Int({"top_n", 0, limits::kInt32Max}));
  INFERD_ASSIGN(const bool texts, fields.BoolOr("return_documents", true));
  INFERD_ASSIGN(Json documents, PlainDocuments(fields));
  Json inner;
  inner["documents"] = std::move(documents);
  inner["query"] = *query;
  const Fields plain(inner, fault);
  INFERD_ASSIGN(Prompts prompts, ParsePrompts(context, plain, "query", 0));
  INFERD_ASSIGN(Prompts listed, ParsePrompts(context, plain, "documents", 0));
  std::move(listed.ids.begin(), listed.ids.end(), std::back_inserter(prompts.ids));
  const auto asked = static_cast<std::size_t>(top_n.value_or(0));
  const std::size_t count = asked == 0 ? listed.texts.size() : asked;
  auto format = std::make_unique<RerankFormat>(
      context.model.name(), count, texts ? std::move(listed.texts) : std::vector<std::string>());
  return EmbedAll(context, std::move(prompts.ids), std::move(format), "documents", fault);
}

}  // namespace inferd::api
