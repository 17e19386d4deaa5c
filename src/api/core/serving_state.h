// SPDX-License-Identifier: Apache-2.0
// Whether this server takes work now, in the words every protocol answers with.
#pragma once

#include "api/core/error_map.h"
#include "inferd/result.h"
#include "leader/inference_service.h"

#include <optional>

namespace inferd::api {

/// Why a request that needs the model is refused (503, UNAVAILABLE); nullopt: it is not. Leaves the
/// reason in the fault.
std::optional<Error> NotServing(leader::Phase phase, bool draining, Fault* fault);

/// The refusal of a request for which the request threads have no room (429, RESOURCE_EXHAUSTED).
/// Leaves the reason in the fault.
Error TooManyUnread(Fault* fault);

}  // namespace inferd::api
