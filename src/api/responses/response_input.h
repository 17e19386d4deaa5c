// SPDX-License-Identifier: Apache-2.0
// The `input` of the Responses API: its items, and the chat messages that they make.
#pragma once

#include "api/core/fields.h"
#include "inferd/result.h"

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace inferd::api {

/// A string or a list of items, as a list of items that all have type and id, and whose content is
/// a list of parts. What a conversation of texts and function calls has no place for (images,
/// files, items of OpenAI's own tools) is refused by path.
Result<nlohmann::ordered_json> ReadInputItems(const Fields& fields);

/// Messages as chat templates expect them, of items made by ReadInputItems() and of the output
/// items of earlier responses.
nlohmann::ordered_json MessagesOf(const nlohmann::ordered_json& items);

}  // namespace inferd::api
