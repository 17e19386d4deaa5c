// SPDX-License-Identifier: Apache-2.0
// GET /version, and /api/version as Ollama calls it.
#include "inferd/version.h"

#include "api/server/endpoints.h"

namespace inferd::api {

Result<Outcome> Version(const ServerContext& /*context*/,
                        const HttpRequest& /*request*/,
                        Fault* /*fault*/) {
  HttpResponse response;
  response.body = R"({"version":")" + std::string(kVersion) + R"("})";
  return Outcome(std::move(response));
}

}  // namespace inferd::api
