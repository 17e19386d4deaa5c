// SPDX-License-Identifier: Apache-2.0
// A request for embeddings in OpenAI's names, for every protocol that speaks them.
#pragma once

#include "api/core/context.h"
#include "api/core/fields.h"
#include "api/core/generation.h"
#include "inferd/result.h"

#include <cstddef>

namespace inferd::api {

struct EmbeddingRequest {
  GenerationSpec spec;         // all but its format
  std::size_t dimensions = 0;  // 0: all
};

/// All of the request but for the model's name and the form of the answer.
Result<EmbeddingRequest> ParseEmbedding(const ServerContext& context, const Fields& fields);

}  // namespace inferd::api
