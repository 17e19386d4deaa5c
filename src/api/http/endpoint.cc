// SPDX-License-Identifier: Apache-2.0
#include "api/http/endpoint.h"

#include "base/error.h"

#include <exception>

namespace inferd::api {

Result<Outcome> CallHandler(Handler handler,
                            const ServerContext& context,
                            const HttpRequest& request,
                            Fault* fault) {
  try {
    return handler(context, request, fault);
  } catch (const std::exception& error) {
    return Internal("{} {}: {}", request.method, request.path, error.what());
  }
}

}  // namespace inferd::api
