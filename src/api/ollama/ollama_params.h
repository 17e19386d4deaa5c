// SPDX-License-Identifier: Apache-2.0
// What Ollama's /api/chat and /api/generate have in common: model name, options, streaming,
// thinking.
#pragma once

#include "api/chat/chat_request.h"
#include "api/core/context.h"
#include "api/core/fields.h"
#include "inferd/result.h"

namespace inferd::api {

/// 404 for a model this server does not have. Ollama's clients may add ":latest".
Result<> CheckOllamaModel(const ServerContext& context, const Fields& fields);

/// `options`, `stream`, `think` and the fields that are refused. `stream` is true unless said.
Result<> ReadOllamaParams(const ServerContext& context, const Fields& fields, ChatRequest* chat);

}  // namespace inferd::api
