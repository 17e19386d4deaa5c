// SPDX-License-Identifier: Apache-2.0
// allowed_token_ids together with a constraint: both must let a token pass.
#pragma once

#include "inferd/result.h"
#include "leader/inference_service.h"

#include <cstdint>
#include <span>

namespace inferd::api {

/// Moves the request's allowed tokens into its constraint; it may have had none. The model's end
/// tokens stay as the constraint had them: where the output may end it can, and without a
/// constraint they must be allowed like others. Nothing to do without allowed tokens.
void ConstrainToAllowed(std::span<const std::int32_t> end_tokens, leader::GenerateRequest* request);

}  // namespace inferd::api
