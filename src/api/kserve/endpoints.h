// SPDX-License-Identifier: Apache-2.0
// The Open Inference Protocol v2 over HTTP, with the generate extension.
#pragma once

#include "api/http/endpoint.h"

namespace inferd::api {

Result<Outcome> V2Server(const ServerContext&, const HttpRequest&, Fault*);  // GET /v2
Result<Outcome> V2Live(const ServerContext&, const HttpRequest&, Fault*);    // GET /v2/health/live
Result<Outcome> V2Ready(const ServerContext&, const HttpRequest&, Fault*);   // GET /v2/health/ready
Result<Outcome> V2ModelGet(const ServerContext&, const HttpRequest&, Fault*);  // GET /v2/models/..
Result<Outcome> V2ModelPost(const ServerContext&,
                            const HttpRequest&,
                            Fault*);                                        // POST /v2/models/..
Result<Outcome> V2Index(const ServerContext&, const HttpRequest&, Fault*);  // POST .../index
Result<Outcome> V2Repository(const ServerContext&, const HttpRequest&, Fault*);  // load, unload

/// {"error":"..."}
std::string V2ErrorBody(const Error& error, const Fault& fault);

}  // namespace inferd::api
