// SPDX-License-Identifier: Apache-2.0
// From method and path to an endpoint. Everything that judges a request (keys, drain, limits) does
// so on the endpoint found here, never on the text of the path.
#pragma once

#include "api/http/endpoint.h"

#include <optional>
#include <string>
#include <string_view>

namespace inferd::api {

struct Route {
  const Endpoint* endpoint = nullptr;  // null: no such path, or not with this method
  std::string methods;                 // that the path knows, for Allow; empty: no such path
};

/// Of an endpoint's path with "{id}": what stands there in `path`.
std::optional<std::string_view> PathParameter(std::string_view pattern, std::string_view path);

/// HEAD finds what GET finds.
Route FindRoute(std::string_view method, std::string_view path);

/// The answer where a route has no endpoint: 404, 405, and OPTIONS with what the path allows.
HttpResponse NoEndpointAnswer(const HttpRequest& request, const Route& route);

}  // namespace inferd::api
