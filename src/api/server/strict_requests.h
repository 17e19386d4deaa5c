// SPDX-License-Identifier: Apache-2.0
// --strict-requests: a field that nobody knows is a mistake the client wants to hear of.
#pragma once

#include "api/http/endpoint.h"
#include "inferd/result.h"

namespace inferd::api {

/// Whether such a request is checked. It is where an outcome that is thrown away has changed
/// nothing: generations that have not begun, scores, vectors, tokens.
bool IsCheckedStrictly(const Endpoint& endpoint);

/// As CallHandler, and refuses the first field of an accepted body that is neither in this server's
/// OpenAPI document nor among what the handler looked at; within objects too, where it knows all
/// that may be in them.
Result<Outcome> CallStrictly(Handler handler,
                             const ServerContext& context,
                             const HttpRequest& request,
                             Fault* fault);

}  // namespace inferd::api
