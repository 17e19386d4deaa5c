// SPDX-License-Identifier: Apache-2.0
#include "api/http/endpoint.h"

#include "api/core/guard.h"

namespace inferd::api {

Result<Outcome> CallHandler(Handler handler,
                            const ServerContext& context,
                            const HttpRequest& request,
                            Fault* fault) {
  return Guarded(request.path, [&] { return handler(context, request, fault); });
}

}  // namespace inferd::api
