// SPDX-License-Identifier: Apache-2.0
#include "api/server/route.h"

#include "api/http/error_response.h"
#include "api/server/endpoints.h"
#include "base/error.h"

#include <utility>

namespace inferd::api {
namespace {

constexpr std::string_view kAllMethods = "GET, HEAD, POST";  // of OPTIONS *

bool Matches(const Endpoint& endpoint, std::string_view path) {
  if (endpoint.path.ends_with('/')) {
    return path.size() > endpoint.path.size() && path.starts_with(endpoint.path);
  }
  return endpoint.path == path || PathParameter(endpoint.path, path).has_value();
}

}  // namespace

std::optional<std::string_view> PathParameter(std::string_view pattern, std::string_view path) {
  const std::size_t at = pattern.find("{id}");
  if (at == std::string_view::npos || !path.starts_with(pattern.substr(0, at))) {
    return std::nullopt;
  }
  const std::string_view rest = path.substr(at);
  const std::string_view id = rest.substr(0, rest.find('/'));
  if (id.empty() || rest.substr(id.size()) != pattern.substr(at + 4)) {
    return std::nullopt;
  }
  return id;
}

Route FindRoute(std::string_view method, std::string_view path) {
  const std::string_view asked = method == "HEAD" ? "GET" : method;
  Route route;
  for (const Endpoint& candidate : Endpoints()) {
    if (Matches(candidate, path)) {
      route.methods += (route.methods.empty() ? "" : ", ") + std::string(candidate.method) +
                       (candidate.method == "GET" ? ", HEAD" : "");
      route.endpoint = candidate.method == asked ? &candidate : route.endpoint;
    }
  }
  if (path == "*" && method == "OPTIONS") {
    route.methods = kAllMethods;
  }
  return route;
}

HttpResponse NoEndpointAnswer(const HttpRequest& request, const Route& route) {
  if (route.methods.empty()) {
    return ErrorResponse(NotFound("There is nothing at {}", request.path.substr(0, 100)));
  }
  HttpResponse response;
  if (request.method == "OPTIONS") {
    response.status = 204;
  } else {
    response = ErrorResponse(InvalidArgument(
        "The method {} is not allowed here; use {}", request.method.substr(0, 20), route.methods));
    response.status = 405;
  }
  response.headers.emplace_back("Allow", route.methods + ", OPTIONS");
  return response;
}

}  // namespace inferd::api
