// SPDX-License-Identifier: Apache-2.0
// The endpoints of Ollama's API.
#pragma once

#include "api/http/endpoint.h"

namespace inferd::api {

Result<Outcome> OllamaChat(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> OllamaGenerate(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> OllamaTags(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> OllamaShow(const ServerContext&, const HttpRequest&, Fault*);

/// {"error":".."}
std::string OllamaErrorBody(const Error& error, const Fault& fault);

}  // namespace inferd::api
