// SPDX-License-Identifier: Apache-2.0
// One endpoint, one handler, one file: what a handler gets and gives. Routing, errors, limits on
// queues, logging and metrics are the server's (server/server.cc), alike for all.
#pragma once

#include "api/core/context.h"
#include "api/core/error_map.h"
#include "api/core/generation.h"
#include "api/http/http_message.h"
#include "inferd/result.h"
#include "tenant/api_key.h"

#include <memory>
#include <string>
#include <string_view>
#include <variant>

namespace inferd::api {

using Outcome = std::variant<HttpResponse, std::unique_ptr<Generation>>;

/// On failure the handler returns the error and leaves parameter and code in the fault.
using Handler = Result<Outcome> (*)(const ServerContext& context,
                                    const HttpRequest& request,
                                    Fault* fault);

/// Calls it. Should a library throw where nobody expected it, this one request is an Internal
/// error.
Result<Outcome> CallHandler(Handler handler,
                            const ServerContext& context,
                            const HttpRequest& request,
                            Fault* fault);

/// CallHandler, or one that asks more of a request.
using HandlerCall = decltype(&CallHandler);

/// Where a handler runs. Inline ones only read atomics; slow ones may wait for minutes, one at a
/// time.
enum class Place { kInline, kLight, kHeavy, kSlow };

struct Endpoint {
  std::string_view method;
  /// Exact; or, ending in '/', a prefix; or with one segment "{id}" that stands for any.
  std::string_view path;
  Place place;
  bool needs_model;  // refused with 503 while the model loads or the server drains
  Handler handler;
  /// How the API of this endpoint writes an error.
  std::string (*error_body)(const Error& error, const Fault& fault) = ErrorBody;
  /// What a key must be good for, when the server has keys. Open ones are few and say so.
  tenant::Scope scope = tenant::Scope::kInference;
  /// Its bodies may be as long as HttpOptions::max_upload_bytes, some at a time.
  bool takes_uploads = false;
};

}  // namespace inferd::api
