// SPDX-License-Identifier: Apache-2.0
// GET /openapi.json.
#include "api/server/openapi.h"

#include "api/core/limits.h"
#include "api/server/endpoints.h"
#include "inferd/version.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace inferd::api {
namespace {

using Json = nlohmann::ordered_json;
using Kind = OperationDoc::Kind;

// clang-format off
constexpr OperationDoc kDocs[] = {
    {"POST", "/v1/chat/completions", "openai", "Answer a chat", "ChatCompletionRequest", "ChatCompletion", Kind::kJsonOrEvents},
    {"POST", "/v1/completions", "openai", "Continue a text", "CompletionRequest", "Completion", Kind::kJsonOrEvents},
    {"POST", "/v1/embeddings", "openai", "Vectors of texts", "EmbeddingRequest", "EmbeddingList"},
    {"POST", "/v1/score", "vllm", "Similarity of texts", "ScoreRequest", "AnyObject"},
    {"POST", "/score", "vllm", "The same", "ScoreRequest", "AnyObject"},
    {"POST", "/v1/rerank", "vllm", "Documents by similarity to a query", "RerankRequest", "AnyObject"},
    {"POST", "/v2/rerank", "vllm", "The same", "RerankRequest", "AnyObject"},
    {"POST", "/rerank", "vllm", "The same", "RerankRequest", "AnyObject"},
    {"POST", "/v1/chat/completions/render", "vllm", "What a chat would run, as token ids", "ChatCompletionRequest", ""},
    {"POST", "/v1/completions/render", "vllm", "What a completion would run, as token ids", "CompletionRequest", "RenderedList"},
    {"POST", "/v1/responses", "openai", "Answer, and keep the answer", "ResponseRequest", "", Kind::kJsonOrEvents},
    {"GET", "/v1/responses/{id}", "openai", "A kept response", "", ""},
    {"DELETE", "/v1/responses/{id}", "openai", "Forget a response", "", ""},
    {"POST", "/v1/responses/{id}/cancel", "openai", "End a response that is streamed", "", ""},
    {"GET", "/v1/responses/{id}/input_items", "openai", "What a response answers", "", ""},
    {"POST", "/v1/files", "openai", "Upload a file", "FileUpload", "File"},
    {"GET", "/v1/files", "openai", "The caller's files", "", "FileList", Kind::kJson, 10'000, "purpose"},
    {"GET", "/v1/files/{id}", "openai", "One file", "", "File"},
    {"DELETE", "/v1/files/{id}", "openai", "Remove a file", "", "AnyObject"},
    {"GET", "/v1/files/{id}/content", "openai", "What is in a file", "", "", Kind::kBytes},
    {"POST", "/v1/batches", "openai", "Run the requests of a file, behind all others", "BatchRequest", "Batch"},
    {"GET", "/v1/batches", "openai", "The caller's batches", "", "BatchList", Kind::kJson, 100},
    {"GET", "/v1/batches/{id}", "openai", "One batch", "", "Batch"},
    {"POST", "/v1/batches/{id}/cancel", "openai", "End a batch with what is answered", "", "Batch"},
    {"POST", "/v1/messages", "anthropic", "Answer a chat", "AnthropicRequest", "", Kind::kJsonOrEvents},
    {"POST", "/v1/messages/count_tokens", "anthropic", "Tokens of a chat", "AnthropicRequest", ""},
    {"POST", "/api/chat", "ollama", "Answer a chat", "OllamaChatRequest", "", Kind::kJsonOrLines},
    {"POST", "/api/generate", "ollama", "Answer a prompt", "OllamaGenerateRequest", "", Kind::kJsonOrLines},
    {"GET", "/api/tags", "ollama", "The models of this server", "", ""},
    {"POST", "/api/show", "ollama", "One model", "OllamaShowRequest", ""},
    {"GET", "/api/version", "ollama", "The server's version", "", ""},
    {"POST", "/abort", "vllm", "End running requests", "AbortRequest", ""},
    {"POST", "/abort_requests", "vllm", "The same", "AbortRequest", ""},
    {"POST", "/sleep", "vllm", "Give memory back until /wake_up; with --enable-sleep-mode", "", "AnyObject"},
    {"POST", "/wake_up", "vllm", "Serve again", "", "AnyObject"},
    {"GET", "/is_sleeping", "vllm", "Whether the server is asleep", "", "AnyObject"},
    {"GET", "/v1/models", "openai", "The models of this server", "", "ModelList"},
    {"GET", "/v1/models/{model}", "openai", "One model", "", "Model"},
    {"POST", "/v1/served_model_name", "server", "Give the model other names while it serves", "ServedModelNameRequest", "AnyObject"},
    {"POST", "/tokenize", "vllm", "Token ids of a text or a chat", "TokenizeRequest", "Tokens"},
    {"POST", "/detokenize", "vllm", "Text of token ids", "DetokenizeRequest", "Detokenized"},
    {"GET", "/v2", "kserve", "Name and extensions of the server", "", ""},
    {"GET", "/v2/health/live", "kserve", "Whether no engine stands still", "", ""},
    {"GET", "/v2/health/ready", "kserve", "Whether a request sent now would be taken", "", ""},
    {"GET", "/v2/models/{model}", "kserve", "Inputs and outputs of a model; behind its name may stand /versions/1 and /ready", "", ""},
    {"POST", "/v2/models/{model}", "kserve", "Behind the name stands /infer, /generate or /generate_stream", "V2Request", "", Kind::kJsonOrEvents},
    {"POST", "/v2/repository/index", "kserve", "The models of this server", "", "V2Index"},
    {"POST", "/v2/repository/models/{model}", "kserve", "Behind the name stands /load or /unload", "", ""},
    {"GET", "/metrics", "server", "Metrics in Prometheus' text format", "", "", Kind::kText},
    {"GET", "/health", "server", "Whether a request sent now would be taken", "", ""},
    {"GET", "/ping", "server", "The same", "", ""},
    {"POST", "/ping", "server", "The same", "", ""},
    {"GET", "/readyz", "server", "The same", "", ""},
    {"GET", "/startupz", "server", "Whether the model is loaded, and how far that is", "", ""},
    {"GET", "/load", "server", "How much runs", "", ""},
    {"GET", "/livez", "server", "Whether no engine stands still", "", ""},
    {"GET", "/version", "server", "The server's version", "", ""},
    {"GET", "/openapi.json", "server", "This document", "", ""},
};
// clang-format on

struct StatusDoc {
  const char* status;
  const char* meaning;
};

/// What any operation may answer besides its reply; bodies are in the shape of its API.
constexpr StatusDoc kFailures[] = {
    {"400", "The request is malformed or asks for what this server or model cannot do"},
    {"401", "No valid API key"},
    {"403", "Not allowed for this key or host name"},
    {"404", "No such model, object or path"},
    {"405", "Another method is needed"},
    {"408", "The request did not arrive in time"},
    {"409", "The object is in a state that does not allow it"},
    {"411", "The length of the body is missing"},
    {"413", "The body is too long"},
    {"415", "The body has a coding this server does not take"},
    {"429", "A queue is full or a limit is used up; Retry-After says when to come back"},
    {"431", "The header is too long"},
    {"503", "Not ready or shutting down"},
    {"504", "The request waited too long"},
};

Json Content(std::string_view type, std::string_view schema) {
  Json body;
  body["schema"] = schema.empty() ? Json{{"type", "object"}}
                                  : Json{{"$ref", "#/components/schemas/" + std::string(schema)}};
  return {{std::string(type), std::move(body)}};
}

Json Replies(const OperationDoc& doc) {
  Json content;
  if (doc.kind == Kind::kText) {
    content["text/plain"]["schema"] = {{"type", "string"}};
  } else if (doc.kind == Kind::kBytes) {
    content["application/octet-stream"]["schema"] = Json::object();
  } else {
    content = Content("application/json", doc.reply);
  }
  if (doc.kind == Kind::kJsonOrEvents) {
    // One server-sent event; its data is JSON text, or [DONE].
    content["text/event-stream"]["schema"] = {{"type", "object"},
                                              {"properties", {{"data", {{"type", "string"}}}}}};
  } else if (doc.kind == Kind::kJsonOrLines) {
    content["application/x-ndjson"]["schema"] = {{"type", "string"}};
  }
  Json replies;
  replies["200"] = {{"description", "The answer"}, {"content", std::move(content)}};
  for (const StatusDoc& failure : kFailures) {
    replies[failure.status] = {{"description", failure.meaning},
                               {"content", Content("application/json", "")}};
  }
  return replies;
}

Json QueryParameter(std::string_view name, Json schema) {
  return {{"name", name}, {"in", "query"}, {"required", false}, {"schema", std::move(schema)}};
}

Json ListParameters(const OperationDoc& doc) {
  Json parameters = Json::array(
      {QueryParameter("limit", {{"type", "integer"}, {"minimum", 1}, {"maximum", doc.list_limit}}),
       QueryParameter("after", {{"type", "string"}}),
       QueryParameter("order", {{"type", "string"}, {"enum", {"asc", "desc"}}})});
  if (!doc.filter.empty()) {
    parameters.push_back(QueryParameter(doc.filter, {{"type", "string"}}));
  }
  return parameters;
}

/// A path of the document is one of the table, or continues one that ends in '/'.
bool NeedsModel(const OperationDoc& doc) {
  const auto endpoints = Endpoints();
  return std::any_of(endpoints.begin(), endpoints.end(), [&doc](const Endpoint& endpoint) {
    return endpoint.needs_model && endpoint.method == doc.method &&
           (endpoint.path == doc.path ||
            (endpoint.path.ends_with('/') && doc.path.starts_with(endpoint.path)));
  });
}

Json TenantParameters() {
  const auto header = [](std::string_view name, std::string_view what, Json schema) {
    return Json{{"name", name},
                {"in", "header"},
                {"required", false},
                {"description", what},
                {"schema", std::move(schema)}};
  };
  return {
      {"Tenant",
       header("X-Inferd-Tenant",
              "For whom a gateway asks: tenants share the server by weight. Believed of keys with "
              "the scope gateway and with --trust-tenant-header, else ignored",
              {{"type", "string"}, {"maxLength", tenant::kMaxTenantBytes}})},
      {"Weight",
       header(
           "X-Inferd-Weight",
           "The weight of that tenant",
           {{"type", "integer"}, {"minimum", 1}, {"maximum", tenant::kMaxWeight}, {"default", 1}})},
      {"Fairness",
       header("X-Gateway-Inference-Fairness-Id",
              "The tenant, where neither X-Inferd-Tenant nor X-Tenant says one",
              {{"type", "string"}, {"maxLength", tenant::kMaxTenantBytes}})},
      {"Objective",
       header("X-Gateway-Inference-Objective",
              "A name of --inference-objectives: its priority. Believed as the tenant; others are "
              "ignored",
              {{"type", "string"}})},
      {"Session",
       header("X-Session-Id",
              "Goes to the replica that the session's other requests went to; comes back in the "
              "answer",
              {{"type", "string"}, {"maxLength", limits::kSessionIdBytes}})}};
}

Json Operation(const OperationDoc& doc) {
  Json operation;
  operation["tags"] = Json::array({doc.tag});
  operation["summary"] = doc.summary;
  const std::size_t open = doc.path.find('{');
  if (open != std::string_view::npos) {
    const std::size_t close = doc.path.find('}', open);
    operation["parameters"] = Json::array({{{"name", doc.path.substr(open + 1, close - open - 1)},
                                            {"in", "path"},
                                            {"required", true},
                                            {"schema", {{"type", "string"}, {"minLength", 1}}}}});
  }
  if (doc.list_limit > 0) {
    operation["parameters"] = ListParameters(doc);
  }
  if (NeedsModel(doc)) {
    for (const char* name : {"Tenant", "Weight", "Fairness", "Objective", "Session"}) {
      operation["parameters"].push_back({{"$ref", std::string("#/components/parameters/") + name}});
    }
  }
  if (!doc.request.empty()) {
    const char* const type =
        doc.request == "FileUpload" ? "multipart/form-data" : "application/json";
    operation["requestBody"] = {{"required", true}, {"content", Content(type, doc.request)}};
  }
  operation["responses"] = Replies(doc);
  return operation;
}

std::string Lower(std::string_view method) {
  std::string lower(method);
  for (char& c : lower) {
    c = static_cast<char>(c | 0x20);
  }
  return lower;
}

}  // namespace

std::span<const OperationDoc> OperationDocs() { return kDocs; }

std::string OpenApiDocument(std::string_view server_version) {
  Json document;
  document["openapi"] = "3.1.0";
  document["info"] = {
      {"title", "inferd"},
      {"version", server_version},
      {"description",
       "LLM inference server. Errors come in the shape of the API that was called."}};
  for (const OperationDoc& doc : kDocs) {
    document["paths"][std::string(doc.path)][Lower(doc.method)] = Operation(doc);
  }
  document["components"]["schemas"] = OpenApiSchemas();
  document["components"]["parameters"] = TenantParameters();
  document["components"]["securitySchemes"]["key"] = {{"type", "http"}, {"scheme", "bearer"}};
  return document.dump();
}

Result<Outcome> OpenApi(const ServerContext& /*context*/,
                        const HttpRequest& /*request*/,
                        Fault* /*fault*/) {
  static const std::string document = OpenApiDocument(kVersion);
  HttpResponse response;
  response.body = document;
  return Outcome(std::move(response));
}

}  // namespace inferd::api
