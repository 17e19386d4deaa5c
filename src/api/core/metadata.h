// SPDX-License-Identifier: Apache-2.0
// `metadata` of batches and responses: a few short strings that are kept for the client.
#pragma once

#include "api/core/fields.h"
#include "inferd/result.h"

#include <nlohmann/json_fwd.hpp>

namespace inferd::api {

/// nullptr when absent.
Result<const nlohmann::ordered_json*> ReadMetadata(const Fields& fields);

}  // namespace inferd::api
