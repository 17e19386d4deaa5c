// SPDX-License-Identifier: Apache-2.0
// When a client that was refused for the load shall come back.
#pragma once

#include "inferd/result.h"
#include "leader/inference_service.h"

#include <cstdint>

namespace inferd::api {

/// Milliseconds for Generation::Fail; 0 when the load is not the reason. No less than the service
/// expects, and up to a quarter and 250 ms more, so that those refused together do not come back
/// together. Any thread.
std::int64_t RetryAfterMs(const leader::Refusal& refusal, const Error& error);

}  // namespace inferd::api
