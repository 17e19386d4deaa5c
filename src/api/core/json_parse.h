// SPDX-License-Identifier: Apache-2.0
// Strict JSON of request bodies: valid UTF-8, no duplicate keys, no NaN, bounded depth, size and
// keys; key order kept.
#pragma once

#include "api/core/error_map.h"
#include "inferd/result.h"

#include <nlohmann/json_fwd.hpp>

#include <string_view>

namespace inferd::api {

/// The body as an object. On failure `fault->param` names the key at which the text went wrong,
/// where there is one.
Result<nlohmann::ordered_json> ParseJsonObject(std::string_view body, Fault* fault);

}  // namespace inferd::api
