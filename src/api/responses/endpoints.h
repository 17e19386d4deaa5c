// SPDX-License-Identifier: Apache-2.0
// The endpoints of OpenAI's Responses API.
#pragma once

#include "api/http/endpoint.h"

namespace inferd::api {

Result<Outcome> CreateResponse(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> GetResponse(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> DeleteResponse(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> CancelResponse(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> ListInputItems(const ServerContext&, const HttpRequest&, Fault*);

}  // namespace inferd::api
