// SPDX-License-Identifier: Apache-2.0
// The `messages` of a chat request, checked and brought into the one form that chat templates
// expect.
#pragma once

#include "api/core/fields.h"
#include "inferd/result.h"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace inferd::api {

/// The `messages` field: a list with at least one entry and not too many.
Result<const nlohmann::ordered_json*> MessageList(const Fields& fields);

/// Text parts become one string (joined by line breaks), absent assistant content becomes "",
/// arguments of past tool calls become objects, the role `developer` becomes `system`. Other
/// content (images, audio) is refused by its path.
Result<nlohmann::ordered_json> NormalizeMessages(const Fields& fields);

/// The reasoning that came before an assistant's message: templates read the one of its two names
/// that they know.
void SetReasoning(std::string reasoning, nlohmann::ordered_json* message);

}  // namespace inferd::api
