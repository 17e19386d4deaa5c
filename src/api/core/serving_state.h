// SPDX-License-Identifier: Apache-2.0
// Whether this server takes work now, in the words every protocol answers with.
#pragma once

#include "inferd/result.h"
#include "leader/inference_service.h"

#include <optional>

namespace inferd::api {

/// Why a request that needs the model is refused (503, UNAVAILABLE); nullopt: it is not.
std::optional<Error> NotServing(leader::Phase phase, bool draining);

}  // namespace inferd::api
