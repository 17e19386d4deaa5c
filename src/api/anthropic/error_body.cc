// SPDX-License-Identifier: Apache-2.0
// Errors in Anthropic's words. There is no field for the parameter: the message begins with it.
#include "api/anthropic/endpoints.h"
#include "api/core/json_writer.h"

namespace inferd::api {
namespace {

std::string_view TypeOf(int http_status) {
  switch (http_status) {
    case 400:
    case 409:
      return "invalid_request_error";
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return "api_error";
  }
}

}  // namespace

std::string AnthropicErrorBody(const Error& error, const Fault& /*fault*/) {
  std::string body = R"({"type":"error","error":{"type":)";
  AppendQuoted(TypeOf(StatusOf(error.code()).http_status), &body);
  body += R"(,"message":)";
  AppendQuoted(PublicMessage(error), &body);
  body += "}}";
  return body;
}

}  // namespace inferd::api
