// SPDX-License-Identifier: Apache-2.0
// Whose a kept thing is: responses, files and batches are seen only by the API key that made them.
#pragma once

#include "api/core/context.h"

#include <string>

namespace inferd::api {

/// The caller's name as an owner; "-" where the server has no keys.
std::string OwnerOf(const ServerContext& context);

}  // namespace inferd::api
