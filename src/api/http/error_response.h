// SPDX-License-Identifier: Apache-2.0
// An error as a whole HTTP answer.
#pragma once

#include "api/core/error_map.h"
#include "api/http/http_message.h"
#include "inferd/result.h"

#include <cstdint>
#include <string>

namespace inferd::api {

/// Status and headers of an error, with a body in the shape of the endpoint's API. Unavailable and
/// exhausted ones carry Retry-After: the time that is known, else a guess.
HttpResponse ErrorResponseWithBody(const Error& error,
                                   std::string body,
                                   std::int64_t retry_after_ms = 0);

/// The same in OpenAI's shape.
HttpResponse ErrorResponse(const Error& error, const Fault& fault = {});

}  // namespace inferd::api
