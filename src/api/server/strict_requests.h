// SPDX-License-Identifier: Apache-2.0
// --strict-requests: a field that nobody knows is a mistake the client wants to hear of.
#pragma once

#include "api/http/endpoint.h"
#include "inferd/result.h"

#include <span>
#include <string>
#include <string_view>

namespace inferd::api {

/// Whether such a request is checked. It is where an outcome that is thrown away has changed
/// nothing: generations that have not begun, scores, vectors, tokens.
bool IsCheckedStrictly(const Endpoint& endpoint);

/// Refuses the first field of the body that is neither in this server's OpenAPI document nor among
/// `asked`, what the handler looked at. Call it after the handler has accepted the body.
Result<> RefuseUnknownFields(const Endpoint& endpoint,
                             std::string_view body,
                             std::span<const std::string> asked,
                             Fault* fault);

}  // namespace inferd::api
