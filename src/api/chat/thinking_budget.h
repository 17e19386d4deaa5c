// SPDX-License-Identifier: Apache-2.0
// How much a model may reason: thinking_token_budget, reasoning_effort. At the budget the end of
// the reasoning is forced, by a constraint: it follows the tokens given out, so it is the same
// after a preemption or a fault, in every layout.
#pragma once

#include "api/chat/chat_request.h"
#include "api/core/context.h"
#include "api/core/generation.h"
#include "inferd/result.h"
#include "leader/inference_service.h"

#include <cstdint>
#include <optional>
#include <string_view>

namespace inferd::api {

/// What an effort allows where the chat template has no word for it; absent: any number of tokens.
std::optional<std::int64_t> BudgetOfEffort(std::string_view effort);

/// Wraps the request's constraint (it may have none) if the chat has a budget and the model can
/// reason. Call when all other constraints are in place; `spec` has its parsers.
Result<> LimitReasoning(const ServerContext& context,
                        const ChatRequest& chat,
                        const GenerationSpec& spec,
                        leader::GenerateRequest* request);

}  // namespace inferd::api
