// SPDX-License-Identifier: Apache-2.0
// What a client that the service has refused is told: why, and when to come back.
#pragma once

#include "api/core/error_map.h"
#include "inferd/result.h"
#include "leader/inference_service.h"

namespace inferd::api {

/// For Generation::Fail. When the load is the reason, the time is no less than the service expects,
/// and up to a quarter and 250 ms more, so that those refused together do not come back together.
/// Any thread.
Fault RefusedFor(const leader::Refusal& refusal, const Error& error);

}  // namespace inferd::api
