// SPDX-License-Identifier: Apache-2.0
#include "api/core/error_map.h"

#include "api/core/json_writer.h"

namespace inferd::api {

ErrorStatus StatusOf(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
    case Code::kOutOfRange:
      return {400, "invalid_request_error"};
    case Code::kUnimplemented:
      return {400, "invalid_request_error"};  // a parameter this server does not know yet
    case Code::kUnauthenticated:
      return {401, "authentication_error"};
    case Code::kPermissionDenied:
      return {403, "permission_error"};
    case Code::kNotFound:
      return {404, "not_found_error"};
    case Code::kAlreadyExists:
    case Code::kAborted:
      return {409, "conflict_error"};
    case Code::kResourceExhausted:
      return {429, "rate_limit_error"};
    case Code::kCancelled:
      return {499, "cancelled_error"};
    case Code::kUnavailable:
      return {503, "service_unavailable_error"};
    case Code::kDeadlineExceeded:
      return {504, "timeout_error"};
    case Code::kUnknown:
    case Code::kInternal:
    case Code::kDataLoss:
      return {500, "internal_server_error"};
  }
  return {500, "internal_server_error"};
}

std::string_view PublicMessage(const Error& error) {
  // What broke inside is for the log: it may name paths, addresses or processes.
  return StatusOf(error.code()).http_status == 500
             ? "The server could not answer this request; its log says why"
             : std::string_view(error.message());
}

std::string ErrorBody(const Error& error, const Fault& fault) {
  const ErrorStatus status = StatusOf(error.code());
  std::string body = R"({"error":{"message":)";
  AppendQuoted(PublicMessage(error), &body);
  body += R"(,"type":)";
  AppendQuoted(status.type, &body);
  body += R"(,"code":)";
  if (fault.code.empty()) {
    body += "null";
  } else {
    AppendQuoted(fault.code, &body);
  }
  body += R"(,"param":)";
  if (fault.param.empty()) {
    body += "null";
  } else {
    AppendQuoted(fault.param, &body);
  }
  body += "}}";
  return body;
}

}  // namespace inferd::api
