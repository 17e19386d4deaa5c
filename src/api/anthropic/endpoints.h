// SPDX-License-Identifier: Apache-2.0
// The endpoints of Anthropic's Messages API.
#pragma once

#include "api/http/endpoint.h"

namespace inferd::api {

Result<Outcome> Messages(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> CountMessageTokens(const ServerContext&, const HttpRequest&, Fault*);

/// {"type":"error","error":{"type","message"}}
std::string AnthropicErrorBody(const Error& error, const Fault& fault);

}  // namespace inferd::api
