// SPDX-License-Identifier: Apache-2.0
// GET /api/tags and /api/version, POST /api/show.
#include "api/core/json_parse.h"
#include "api/ollama/endpoints.h"
#include "api/ollama/ollama_format.h"
#include "api/ollama/ollama_params.h"
#include "spec/memory_ledger.h"

#include <nlohmann/json.hpp>

#include <string>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;

std::string Size(std::int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  return parameters >= 1'000'000'000 ? fmt::format("{:.1f}B", count * 1e-9)
                                     : fmt::format("{:.2f}M", count * 1e-6);
}

Json Details(const spec::ModelSpec& model) {
  // Families of files in Hugging Face's form are called by their class.
  const bool hugging_face = model.architecture.find("For") != std::string::npos;
  return {{"parent_model", ""},
          {"format", hugging_face ? "safetensors" : "gguf"},
          {"family", model.architecture},
          {"families", Json::array({model.architecture})},
          {"parameter_size", Size(spec::CountParameters(model))},
          {"quantization_level", std::string(DTypeName(model.weight_dtype))}};
}

Json Capabilities(const ServedModel& model) {
  Json capabilities = Json::array({"completion"});
  if (model.dialect.calls != nullptr) {
    capabilities.push_back("tools");
  }
  if (model.dialect.reasoning != nullptr) {
    capabilities.push_back("thinking");
  }
  return capabilities;
}

}  // namespace

Result<Outcome> OllamaTags(const ServerContext& context,
                           const HttpRequest& /*request*/,
                           Fault* /*fault*/) {
  Json models = Json::array();
  for (const std::string& name : context.model.names->All()) {
    models.push_back({{"name", name},
                      {"model", name},
                      {"modified_at", OllamaTime(context.model.created_s * 1'000'000)},
                      {"size", context.service.load_progress().bytes_total},
                      {"digest", ""},
                      {"details", Details(context.service.model())}});
  }
  HttpResponse response;
  response.body = Json{{"models", std::move(models)}}.dump();
  return Outcome(std::move(response));
}

Result<Outcome> OllamaShow(const ServerContext& context, const HttpRequest& request, Fault* fault) {
  INFERD_ASSIGN(const auto body, ParseJsonObject(request.body, fault));
  INFERD_TRY(CheckOllamaModel(context, Fields(body, fault)));
  const spec::ModelSpec& model = context.service.model();
  const std::string& family = model.architecture;
  const Json info = {{"general.architecture", family},
                     {"general.parameter_count", spec::CountParameters(model)},
                     {family + ".context_length", context.service.max_model_len()},
                     {family + ".embedding_length", model.hidden_size},
                     {family + ".block_count", model.num_layers},
                     {family + ".feed_forward_length", model.intermediate_size},
                     {family + ".attention.head_count", model.num_heads},
                     {family + ".attention.head_count_kv", model.num_kv_heads},
                     {family + ".vocab_size", model.vocab_size}};
  HttpResponse response;
  response.body = Json{{"modelfile", ""},
                       {"parameters", ""},
                       {"template", ""},
                       {"details", Details(model)},
                       {"model_info", info},
                       {"capabilities", Capabilities(context.model)},
                       {"modified_at", OllamaTime(context.model.created_s * 1'000'000)}}
                      .dump();
  return Outcome(std::move(response));
}

}  // namespace inferd::api
