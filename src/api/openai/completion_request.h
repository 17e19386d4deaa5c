// SPDX-License-Identifier: Apache-2.0
// A completion request in OpenAI's and vLLM's names, for every protocol that speaks them.
#pragma once

#include "api/core/context.h"
#include "api/core/fields.h"
#include "api/core/generation.h"
#include "inferd/result.h"

namespace inferd::api {

/// All of the request but for the model's name and the format of the answer.
Result<GenerationSpec> ParseCompletion(const ServerContext& context, const Fields& fields);

}  // namespace inferd::api
