// SPDX-License-Identifier: Apache-2.0
#include "api/server/server.h"

#include "api/core/serving_state.h"
#include "api/http/error_response.h"
#include "api/server/endpoints.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

namespace inferd::api {
namespace {

std::int64_t NowNs() { return base::SteadyClock::Get().NowNs(); }

/// Of a path with "{id}": what stands there.
std::optional<std::string_view> PathParameter(std::string_view pattern, std::string_view path) {
  const std::size_t at = pattern.find("{id}");
  if (at == std::string_view::npos || !path.starts_with(pattern.substr(0, at))) {
    return std::nullopt;
  }
  const std::string_view rest = path.substr(at);
  const std::string_view id = rest.substr(0, rest.find('/'));
  if (id.empty() || rest.substr(id.size()) != pattern.substr(at + 4)) {
    return std::nullopt;
  }
  return id;
}

bool Matches(const Endpoint& endpoint, std::string_view path) {
  if (endpoint.path.ends_with('/')) {
    return path.size() > endpoint.path.size() && path.starts_with(endpoint.path);
  }
  return endpoint.path == path || PathParameter(endpoint.path, path).has_value();
}

/// The answer for a method the path does not know, OPTIONS among them.
HttpResponse MethodAnswer(const std::string& method, std::string allowed) {
  HttpResponse response;
  if (method == "OPTIONS") {
    response.status = 204;
  } else {
    response = ErrorResponse(InvalidArgument(
        "The method {} is not allowed here; use {}", method.substr(0, 20), allowed));
    response.status = 405;
  }
  response.headers.emplace_back("Allow", allowed + ", OPTIONS");
  return response;
}

}  // namespace

Server::Server(const HttpOptions& options,
               std::shared_ptr<const ServedModel> model,
               leader::InferenceService* service)
    : options_(options), model_(std::move(model)), service_(service), started_ns_(NowNs()) {}

Result<std::unique_ptr<Server>> Server::Start(const HttpOptions& options,
                                              std::shared_ptr<const ServedModel> model,
                                              leader::InferenceService* service) {
  std::unique_ptr<Server> server(new Server(options, std::move(model), service));
  server->port_ = options.port;
  for (int i = 0; i < options.io_threads; ++i) {
    auto io = std::make_unique<IoThread>(
        static_cast<std::uint32_t>(i), options, server.get(), service, &server->metrics_);
    INFERD_ASSIGN(server->port_, io->Listen(server->port_, options.io_threads > 1));
    server->io_threads_.push_back(std::move(io));
  }
  server->pool_ = std::make_unique<RequestPool>(options.request_threads, options.request_queue);
  for (const auto& io : server->io_threads_) {
    server->threads_.emplace_back([thread = io.get()] {
      try {
        thread->Run();
      } catch (const std::exception& error) {  // only a bug or an exhausted heap gets here
        base::CheckFailed("I/O thread", error.what());
      }
    });
  }
  return server;
}

Server::~Server() { Stop(); }

void Server::Stop() {
  if (stopped_) {
    return;
  }
  stopped_ = true;
  for (const auto& io : io_threads_) {
    io->Stop();
  }
  threads_.clear();  // joins
  pool_.reset();
}

bool Server::HostAllowed(std::string_view host) const {
  if (options_.allowed_hosts.empty() || host.empty()) {
    return true;
  }
  const std::size_t end = host.starts_with('[') ? host.find(']') + 1 : host.find(':');
  const std::string_view name = host.substr(0, end);
  return std::any_of(
      options_.allowed_hosts.begin(),
      options_.allowed_hosts.end(),
      [&](const std::string& allowed) {
        return std::equal(
            name.begin(), name.end(), allowed.begin(), allowed.end(), [](char a, char b) {
              return std::tolower(a) == std::tolower(b);
            });
      });
}

void Server::Dispatch(IoThread* io, RequestKey key, HttpRequest request) {
  if (!HostAllowed(request.host)) {
    return io->Respond(
        key,
        ErrorResponse(PermissionDenied(
            "This server answers for its own host names only; see --allowed-hosts")));
  }
  const std::string_view asked =
      request.method == "HEAD" ? "GET" : std::string_view(request.method);
  const Endpoint* endpoint = nullptr;
  std::string allowed;
  for (const Endpoint& candidate : Endpoints()) {
    if (Matches(candidate, request.path)) {
      allowed += (allowed.empty() ? "" : ", ") + std::string(candidate.method) +
                 (candidate.method == "GET" ? ", HEAD" : "");
      endpoint = candidate.method == asked ? &candidate : endpoint;
    }
  }
  if (allowed.empty()) {
    return io->Respond(
        key, ErrorResponse(NotFound("There is nothing at {}", request.path.substr(0, 100))));
  }
  if (endpoint == nullptr) {
    return io->Respond(key, MethodAnswer(request.method, allowed));
  }
  request.path_parameter = PathParameter(endpoint->path, request.path).value_or("");
  ServerContext context{.model = *model_,
                        .service = *service_,
                        .metrics = metrics_,
                        .responses = &responses_,
                        .running = &running_,
                        .draining = draining(),
                        .started_ns = started_ns_,
                        .arrived_ns = NowNs()};
  if (endpoint->needs_model) {
    if (auto error = NotServing(service_->phase(), context.draining)) {
      return io->Respond(key, ErrorResponseWithBody(*error, endpoint->error_body(*error, {})));
    }
  }
  const auto run = [endpoint](const ServerContext& with, const HttpRequest& what) -> Outcome {
    Fault fault;
    auto outcome = endpoint->handler(with, what, &fault);
    if (outcome.ok()) {
      return *std::move(outcome);
    }
    HttpResponse response =
        ErrorResponseWithBody(outcome.error(), endpoint->error_body(outcome.error(), fault));
    if (response.status == 500) {
      log::Failure("api", "{} id={}", outcome.error().message(), what.request_id);
    }
    return response;
  };
  if (endpoint->place == Place::kInline) {
    return io->Respond(key, std::get<HttpResponse>(run(context, request)));
  }
  auto job = [io, key, run, context, what = std::move(request)]() {
    auto outcome = std::make_shared<Outcome>(run(context, what));
    io->Post([io, key, outcome] {
      if (auto* response = std::get_if<HttpResponse>(outcome.get())) {
        io->Respond(key, std::move(*response));
      } else {
        io->Start(key, std::move(std::get<std::unique_ptr<Generation>>(*outcome)));
      }
    });
  };
  const auto lane =
      endpoint->place == Place::kHeavy ? RequestPool::Lane::kHeavy : RequestPool::Lane::kLight;
  if (!pool_->TryRun(lane, std::move(job))) {
    const Error full = ResourceExhausted("Too many requests wait to be read; try again soon");
    io->Respond(key, ErrorResponseWithBody(full, endpoint->error_body(full, {})));
  }
}

}  // namespace inferd::api
