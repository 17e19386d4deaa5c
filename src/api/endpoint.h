// SPDX-License-Identifier: Apache-2.0
// One endpoint, one handler, one file: what a handler gets and gives. Routing, errors, limits on
// queues, logging and metrics are the server's (server.cc), alike for all.
#pragma once

#include "api/error_map.h"
#include "api/generation.h"
#include "api/http_message.h"
#include "api/metrics.h"
#include "api/served_model.h"
#include "inferd/result.h"
#include "leader/inference_service.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <variant>

namespace inferd::api {

/// What handlers may look at. All of it is thread-safe and outlives every request.
struct ServerContext {
  const ServedModel& model;
  leader::InferenceService& service;
  Metrics& metrics;
  bool draining = false;
  std::int64_t arrived_ns = 0;  // of this request
};

using Outcome = std::variant<HttpResponse, std::unique_ptr<Generation>>;

/// On failure the handler returns the error and leaves parameter and code in the fault.
using Handler = Result<Outcome> (*)(const ServerContext& context,
                                    const HttpRequest& request,
                                    Fault* fault);

/// Where a handler runs. Inline ones only read atomics.
enum class Place { kInline, kLight, kHeavy };

struct Endpoint {
  std::string_view method;
  std::string_view path;  // exact; or, ending in '/', a prefix
  Place place;
  bool needs_model;  // refused with 503 while the model loads or the server drains
  Handler handler;
};

Result<Outcome> ChatCompletions(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Completions(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> ListModels(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> GetModel(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Tokenize(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Detokenize(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Livez(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Readyz(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> Version(const ServerContext&, const HttpRequest&, Fault*);
Result<Outcome> GetMetrics(const ServerContext&, const HttpRequest&, Fault*);

/// All endpoints.
std::span<const Endpoint> Endpoints();

}  // namespace inferd::api
