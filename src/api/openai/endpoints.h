// SPDX-License-Identifier: Apache-2.0
// The endpoints of OpenAI's API and vLLM's additions to it.
#pragma once

#include "api/http/endpoint.h"

namespace inferd::api {

Result<Outcome> ChatCompletions(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Completions(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Embeddings(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Score(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Rerank(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> RenderChatPrompt(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> RenderCompletionPrompts(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> AbortRequests(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> ListModels(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> GetModel(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Tokenize(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Detokenize(const ServerContext&, const HttpRequest&, Fault*);

}  // namespace inferd::api
