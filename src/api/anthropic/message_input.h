// SPDX-License-Identifier: Apache-2.0
// The `system` and `messages` of Anthropic's API in the form that chat templates expect.
#pragma once

#include "api/chat/chat_tools.h"
#include "api/core/fields.h"
#include "inferd/result.h"

#include <nlohmann/json_fwd.hpp>

namespace inferd::api {

/// Blocks of text join into one string; tool_use becomes a call of the assistant's message,
/// tool_result a message of the role `tool`, thinking the message's reasoning. Turns of one role
/// in a row become one, as Anthropic does it. Other blocks (images, documents) are refused by path.
Result<nlohmann::ordered_json> ReadAnthropicMessages(const Fields& fields);

/// `tools` and `tool_choice`. Tools that run on Anthropic's servers are refused by path.
Result<ChatTools> ReadAnthropicTools(const Fields& fields);

}  // namespace inferd::api
