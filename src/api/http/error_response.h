// SPDX-License-Identifier: Apache-2.0
// An error as a whole HTTP answer.
#pragma once

#include "api/core/error_map.h"
#include "api/http/http_message.h"
#include "inferd/result.h"

#include <string>

namespace inferd::api {

/// Status and headers of an error, with a body in the shape of the endpoint's API. Unavailable and
/// exhausted ones carry Retry-After: the time that is known, else a guess. A refusal carries its
/// reason, and what is known of a retry goes into X-Should-Retry, which OpenAI's clients obey.
HttpResponse ErrorResponseWithBody(const Error& error, std::string body, const Fault& fault = {});

/// The same in OpenAI's shape.
HttpResponse ErrorResponse(const Error& error, const Fault& fault = {});

}  // namespace inferd::api
