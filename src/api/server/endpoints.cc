// SPDX-License-Identifier: Apache-2.0
#include "api/server/endpoints.h"

#include "api/anthropic/endpoints.h"
#include "api/batch/endpoints.h"
#include "api/files/endpoints.h"
#include "api/kserve/endpoints.h"
#include "api/ollama/endpoints.h"
#include "api/openai/endpoints.h"
#include "api/responses/endpoints.h"

namespace inferd::api {
namespace {

constexpr Endpoint kEndpoints[] = {
    {"POST", "/v1/chat/completions", Place::kHeavy, true, ChatCompletions},
    {"POST", "/v1/completions", Place::kHeavy, true, Completions},
    {"POST", "/v1/embeddings", Place::kHeavy, true, Embeddings},
    {"POST", "/v1/score", Place::kHeavy, true, Score},
    {"POST", "/score", Place::kHeavy, true, Score},
    {"POST", "/v1/rerank", Place::kHeavy, true, Rerank},
    {"POST", "/v2/rerank", Place::kHeavy, true, Rerank},
    {"POST", "/rerank", Place::kHeavy, true, Rerank},
    {"POST", "/v1/chat/completions/render", Place::kHeavy, true, RenderChatPrompt},
    {"POST", "/v1/completions/render", Place::kHeavy, true, RenderCompletionPrompts},
    {"POST", "/abort", Place::kLight, false, AbortRequests, ErrorBody, tenant::Scope::kAdmin},
    {"POST",
     "/abort_requests",
     Place::kLight,
     false,
     AbortRequests,
     ErrorBody,
     tenant::Scope::kAdmin},  // as vLLM calls it
    {"GET", "/v1/models", Place::kLight, false, ListModels, ErrorBody, tenant::Scope::kAny},
    {"GET", "/v1/models/", Place::kLight, false, GetModel, ErrorBody, tenant::Scope::kAny},
    {"POST", "/v1/messages", Place::kHeavy, true, Messages, AnthropicErrorBody},
    {"POST",
     "/v1/messages/count_tokens",
     Place::kHeavy,
     true,
     CountMessageTokens,
     AnthropicErrorBody},
    {"POST", "/v1/responses", Place::kHeavy, true, CreateResponse},
    {"GET", "/v1/responses/{id}", Place::kLight, false, GetResponse},
    {"DELETE", "/v1/responses/{id}", Place::kLight, false, DeleteResponse},
    {"POST", "/v1/responses/{id}/cancel", Place::kLight, false, CancelResponse},
    {"GET", "/v1/responses/{id}/input_items", Place::kHeavy, false, ListInputItems},
    {"POST",
     "/v1/files",
     Place::kHeavy,
     false,
     UploadFile,
     ErrorBody,
     tenant::Scope::kInference,
     true},
    {"GET", "/v1/files", Place::kLight, false, ListFiles, ErrorBody, tenant::Scope::kAny},
    {"GET", "/v1/files/{id}", Place::kLight, false, GetFile, ErrorBody, tenant::Scope::kAny},
    {"DELETE", "/v1/files/{id}", Place::kLight, false, DeleteFile},
    {"GET",
     "/v1/files/{id}/content",
     Place::kHeavy,
     false,
     GetFileContent,
     ErrorBody,
     tenant::Scope::kAny},
    {"POST", "/v1/batches", Place::kLight, false, CreateBatch},
    {"GET", "/v1/batches", Place::kLight, false, ListBatches, ErrorBody, tenant::Scope::kAny},
    {"GET", "/v1/batches/{id}", Place::kLight, false, GetBatch, ErrorBody, tenant::Scope::kAny},
    {"POST", "/v1/batches/{id}/cancel", Place::kLight, false, CancelBatch},
    {"POST", "/api/chat", Place::kHeavy, true, OllamaChat, OllamaErrorBody},
    {"POST", "/api/generate", Place::kHeavy, true, OllamaGenerate, OllamaErrorBody},
    {"GET", "/api/tags", Place::kLight, false, OllamaTags, OllamaErrorBody, tenant::Scope::kAny},
    {"POST", "/api/show", Place::kLight, false, OllamaShow, OllamaErrorBody, tenant::Scope::kAny},
    {"GET", "/api/version", Place::kInline, false, Version, OllamaErrorBody, tenant::Scope::kOpen},
    {"POST", "/tokenize", Place::kHeavy, false, Tokenize},
    {"POST", "/detokenize", Place::kHeavy, false, Detokenize},
    {"GET", "/v2", Place::kInline, false, V2Server, V2ErrorBody, tenant::Scope::kAny},
    {"GET", "/v2/health/live", Place::kInline, false, V2Live, V2ErrorBody, tenant::Scope::kOpen},
    {"GET", "/v2/health/ready", Place::kInline, false, V2Ready, V2ErrorBody, tenant::Scope::kOpen},
    {"GET", "/v2/models/", Place::kLight, false, V2ModelGet, V2ErrorBody, tenant::Scope::kAny},
    {"POST", "/v2/models/", Place::kHeavy, true, V2ModelPost, V2ErrorBody},
    {"POST",
     "/v2/repository/index",
     Place::kLight,
     false,
     V2Index,
     V2ErrorBody,
     tenant::Scope::kAny},
    {"POST",
     "/v2/repository/models/",
     Place::kLight,
     false,
     V2Repository,
     V2ErrorBody,
     tenant::Scope::kAdmin},
    {"POST", "/sleep", Place::kSlow, false, GoToSleep, ErrorBody, tenant::Scope::kAdmin},
    {"POST", "/wake_up", Place::kSlow, false, WakeUp, ErrorBody, tenant::Scope::kAdmin},
    {"GET", "/is_sleeping", Place::kInline, false, IsSleeping, ErrorBody, tenant::Scope::kAny},
    {"GET", "/metrics", Place::kLight, false, GetMetrics, ErrorBody, tenant::Scope::kMetrics},
    {"GET", "/health", Place::kInline, false, Readyz, ErrorBody, tenant::Scope::kOpen},
    {"GET", "/ping", Place::kInline, false, Readyz, ErrorBody, tenant::Scope::kOpen},
    {"POST",
     "/ping",
     Place::kInline,
     false,
     Readyz,
     ErrorBody,
     tenant::Scope::kOpen},  // as SageMaker calls it
    {"GET", "/readyz", Place::kInline, false, Readyz, ErrorBody, tenant::Scope::kOpen},
    {"GET", "/startupz", Place::kInline, false, Startupz, ErrorBody, tenant::Scope::kOpen},
    {"GET", "/load", Place::kLight, false, Load, ErrorBody, tenant::Scope::kMetrics},
    {"GET", "/livez", Place::kInline, false, Livez, ErrorBody, tenant::Scope::kOpen},
    {"GET", "/version", Place::kInline, false, Version, ErrorBody, tenant::Scope::kOpen},
    {"GET", "/openapi.json", Place::kLight, false, OpenApi, ErrorBody, tenant::Scope::kAny},
};

}  // namespace

std::span<const Endpoint> Endpoints() { return kEndpoints; }

}  // namespace inferd::api
