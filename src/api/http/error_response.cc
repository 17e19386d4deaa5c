// SPDX-License-Identifier: Apache-2.0
#include "api/http/error_response.h"

#include <utility>

namespace inferd::api {

HttpResponse ErrorResponseWithBody(const Error& error, std::string body) {
  HttpResponse response;
  response.status = StatusOf(error.code()).http_status;
  response.body = std::move(body);
  if (response.status == 429) {
    response.headers.emplace_back("Retry-After", "1");
  } else if (response.status == 503) {
    response.headers.emplace_back("Retry-After", "5");
  }
  return response;
}

HttpResponse ErrorResponse(const Error& error, const Fault& fault) {
  return ErrorResponseWithBody(error, ErrorBody(error, fault));
}

}  // namespace inferd::api
