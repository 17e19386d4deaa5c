// SPDX-License-Identifier: Apache-2.0
// The endpoints that speak of the server itself, and the table of all endpoints.
#pragma once

#include "api/http/endpoint.h"

#include <span>

namespace inferd::api {

Result<Outcome> Livez(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Readyz(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Startupz(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Load(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Version(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> OpenApi(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> GetMetrics(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> GoToSleep(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> WakeUp(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> IsSleeping(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> SetServedModelName(const ServerContext&, const HttpRequest&, Fault*);

/// All endpoints.
std::span<const Endpoint> Endpoints();

}  // namespace inferd::api
