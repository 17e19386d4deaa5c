// SPDX-License-Identifier: Apache-2.0
// GET /metrics.
#include "api/server/endpoints.h"

namespace inferd::api {

Result<Outcome> GetMetrics(const ServerContext& context,
                           const HttpRequest& /*request*/,
                           Fault* /*fault*/) {
  HttpResponse response;
  response.content_type = kMetricsContentType;
  response.body = context.metrics.Render(context.service, context.model.names->primary());
  return Outcome(std::move(response));
}

}  // namespace inferd::api
