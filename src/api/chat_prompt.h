// SPDX-License-Identifier: Apache-2.0
// From a chat request's messages to prompt token ids; shared by /v1/chat/completions and /tokenize.
#pragma once

#include "api/endpoint.h"
#include "api/fields.h"
#include "inferd/result.h"

#include <cstdint>
#include <vector>

namespace inferd::api {

/// Renders the model's template and tokenises. The prompt begins with BOS once if the model wants
/// one, whether or not the template prints it.
Result<std::vector<std::int32_t>> ChatPrompt(const ServerContext& context, const Fields& fields);

}  // namespace inferd::api
