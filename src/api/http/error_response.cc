// SPDX-License-Identifier: Apache-2.0
#include "api/http/error_response.h"

#include <utility>

namespace inferd::api {

HttpResponse ErrorResponseWithBody(const Error& error,
                                   std::string body,
                                   std::int64_t retry_after_ms) {
  HttpResponse response;
  response.status = StatusOf(error.code()).http_status;
  response.body = std::move(body);
  if (response.status == 401) {
    response.headers.emplace_back("WWW-Authenticate", "Bearer realm=\"inferd\"");
  } else if (retry_after_ms > 0) {
    response.headers.emplace_back("Retry-After", std::to_string((retry_after_ms + 999) / 1000));
    response.headers.emplace_back("Retry-After-Ms", std::to_string(retry_after_ms));
  } else if (response.status == 429) {
    response.headers.emplace_back("Retry-After", "1");
  } else if (response.status == 503) {
    response.headers.emplace_back("Retry-After", "5");
  }
  return response;
}

HttpResponse ErrorResponse(const Error& error, const Fault& fault) {
  return ErrorResponseWithBody(error, ErrorBody(error, fault), fault.retry_after_ms);
}

}  // namespace inferd::api
