// SPDX-License-Identifier: Apache-2.0
#include "api/http/error_response.h"

#include <optional>
#include <utility>

namespace inferd::api {
namespace {

/// Whether the same request may be taken if it is sent again soon; nullopt: nothing is known beyond
/// what the status says. Clients would repeat a 409 by themselves, but here it is the answer to
/// what was aborted or is under way. A server that sleeps does not change by itself, one that has
/// failed ends. A 503 without a reason ended a request that was taken, and may have been its doing.
std::optional<bool> ShouldRetry(int status, const Fault& fault) {
  if (status == 409 || fault.retry_after_ms < 0) {
    return false;
  }
  if (status == 503 && (fault.reason.empty() || fault.reason == "failed")) {
    return std::nullopt;
  }
  if (status == 429 || status == 503) {
    return fault.reason != "asleep";
  }
  return std::nullopt;
}

}  // namespace

HttpResponse ErrorResponseWithBody(const Error& error, std::string body, const Fault& fault) {
  HttpResponse response;
  response.status = StatusOf(error.code()).http_status;
  response.body = std::move(body);
  if (response.status == 401) {
    response.headers.emplace_back("WWW-Authenticate", "Bearer realm=\"inferd\"");
  } else if (fault.retry_after_ms > 0) {
    response.headers.emplace_back("Retry-After",
                                  std::to_string((fault.retry_after_ms + 999) / 1000));
    response.headers.emplace_back("Retry-After-Ms", std::to_string(fault.retry_after_ms));
  } else if (response.status == 429 && fault.retry_after_ms == 0) {
    response.headers.emplace_back("Retry-After", "1");
  } else if (response.status == 503 && fault.retry_after_ms == 0) {
    response.headers.emplace_back("Retry-After", "5");
  }
  if (const auto retry = ShouldRetry(response.status, fault)) {
    response.headers.emplace_back("X-Should-Retry", *retry ? "true" : "false");
  }
  if (!fault.reason.empty()) {
    response.headers.emplace_back("X-Inferd-Rejected-Reason", std::string(fault.reason));
  }
  return response;
}

HttpResponse ErrorResponse(const Error& error, const Fault& fault) {
  return ErrorResponseWithBody(error, ErrorBody(error, fault), fault);
}

}  // namespace inferd::api
