// SPDX-License-Identifier: Apache-2.0
// What forces a reply to call tools, or to call them right: the grammar of the model's dialect.
#pragma once

#include "api/chat/chat_tools.h"
#include "api/core/constraint.h"
#include "api/core/context.h"
#include "inferd/result.h"
#include "leader/inference_service.h"

#include <memory>

namespace inferd::api {

/// Null when the tools ask for none: only required and named choices and strict tools do.
/// `in_reasoning`: the reply begins within reasoning, which is left alone.
Result<std::shared_ptr<const leader::TokenConstraint>> ConstrainCalls(const ServerContext& context,
                                                                      const ChatTools& tools,
                                                                      bool in_reasoning,
                                                                      Fault* fault);

/// Where structured output begins for a reply that begins within reasoning: behind it.
ConstraintStart AfterReasoning(const ServedModel& model);

}  // namespace inferd::api
