// SPDX-License-Identifier: Apache-2.0
#include "api/server/server.h"

#include "api/core/asker.h"
#include "api/core/serving_state.h"
#include "api/files/disk.h"
#include "api/http/error_response.h"
#include "api/server/reply_head.h"
#include "api/server/route.h"
#include "api/server/strict_requests.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

namespace inferd::api {
namespace {

constexpr std::size_t kFormBytes = 64U << 10;

std::int64_t NowNs() { return base::SteadyClock::Get().NowNs(); }

/// Runs on a request thread, or on the I/O thread for what only reads atomics.
Outcome RunHandler(const Endpoint& endpoint,
                   const ServerContext& context,
                   const HttpRequest& request,
                   bool strict = false) {
  Fault fault;
  const auto call = strict && IsCheckedStrictly(endpoint) ? CallStrictly : CallHandler;
  auto outcome = call(endpoint.handler, context, request, &fault);
  if (outcome.ok()) {
    return *std::move(outcome);
  }
  if (context.span != nullptr) {
    context.span->span().error = outcome.error();
    context.span->span().error_param = fault.param;
  }
  HttpResponse response =
      ErrorResponseWithBody(outcome.error(), endpoint.error_body(outcome.error(), fault), fault);
  if (response.status == 500) {
    log::Failure("api", "{} id={}", outcome.error().message(), request.request_id);
  }
  return response;
}

}  // namespace

Server::Server(const HttpOptions& options,
               std::shared_ptr<const ServedModel> model,
               leader::InferenceService* service,
               std::shared_ptr<tenant::Gate> gate)
    : options_(options),
      model_(std::move(model)),
      service_(service),
      gate_(std::move(gate)),
      started_ns_(NowNs()) {}

Result<std::unique_ptr<Server>> Server::Start(const HttpOptions& options,
                                              std::shared_ptr<const ServedModel> model,
                                              leader::InferenceService* service,
                                              std::shared_ptr<tenant::Gate> gate,
                                              std::optional<StorageOptions> storage) {
  std::unique_ptr<Server> server(new Server(options, std::move(model), service, std::move(gate)));
  server->metrics_.Watch(server->gate_);
  server->metrics_.Watch(options.spans);
  server->metrics_.SetCompat(options.metrics_compat);
  if (storage) {
    INFERD_TRY(server->OpenStorage(*std::move(storage)));
  }
  server->port_ = options.port;
  for (int i = 0; i < options.io_threads; ++i) {
    auto io = std::make_unique<IoThread>(
        static_cast<std::uint32_t>(i), server->options_, server.get(), service, &server->metrics_);
    INFERD_ASSIGN(Listener listener, server->Listen());
    server->port_ = listener.port;
    INFERD_TRY(io->Adopt(std::move(listener)));
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

Result<> Server::OpenStorage(StorageOptions storage) {
  INFERD_TRY(MakeFolder(storage.folder));
  INFERD_ASSIGN(storage_lock_, LockFile(storage.folder + "/lock"));
  storage.files.folder = storage.folder + "/files";
  INFERD_ASSIGN(files_, FileStore::Open(storage.files));
  INFERD_ASSIGN(batch_store_, BatchStore::Open(storage.folder + "/batches", &metrics_));
  const std::size_t max_running = storage.batches.max_running;
  batches_ = std::make_unique<BatchRunner>(
      std::move(storage.batches), batch_store_.get(), files_.get(), &metrics_);
  batches_->Start(
      std::make_unique<LineRunner>(model_,
                                   service_,
                                   &metrics_,
                                   gate_.get(),
                                   max_running,
                                   options_.strict_requests ? CallStrictly : CallHandler));
  // Beside the file a form holds its other parts and their heads.
  options_.max_upload_bytes = static_cast<std::size_t>(storage.files.max_file_bytes) + kFormBytes;
  return {};
}

/// For one more I/O thread. A TCP port is shared by several sockets, a Unix socket by duplicates.
Result<Listener> Server::Listen() {
  if (options_.uds.empty()) {
    return ListenTcp(options_.host, port_, options_.io_threads > 1);
  }
  if (!unix_listener_.fd.valid()) {
    INFERD_ASSIGN(unix_listener_, ListenUnix(options_.uds));
  }
  return Duplicate(unix_listener_);
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
  if (unix_listener_.fd.valid()) {
    unlink(options_.uds.c_str());
    unix_listener_.fd.Reset();
  }
  pool_.reset();
  if (batches_ != nullptr) {
    batches_->Stop();
  }
}

void Server::BeginDrain() {
  BeginLeaving();
  refusing_.store(true, std::memory_order_release);
  if (batches_ != nullptr) {
    batches_->BeginDrain();
  }
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

Result<std::shared_ptr<tenant::Admission>> Server::Admit(const HttpRequest& request,
                                                         const Endpoint* endpoint,
                                                         tenant::Refusal* refusal) {
  if (gate_ == nullptr) {
    return std::shared_ptr<tenant::Admission>();
  }
  return gate_->Admit({.key = request.key,
                       .scope = endpoint == nullptr ? tenant::Scope::kAny : endpoint->scope,
                       .operation = endpoint == nullptr ? "" : endpoint->path,
                       .request_id = request.request_id,
                       .tenant = request.tenant,
                       .weight = request.tenant_weight,
                       .objective = request.objective},
                      refusal);
}

/// On I/O threads. Whoever may not upload is told before a place is taken.
LongBody Server::AdmitLongBody(const HttpRequest& head) {
  const Route route = FindRoute(head.method, head.path);
  if (route.endpoint == nullptr || !route.endpoint->takes_uploads) {
    return {413, "the body is larger than this server takes", nullptr};
  }
  if (gate_ != nullptr) {
    if (const auto checked = gate_->Check({.key = head.key, .scope = route.endpoint->scope});
        !checked.ok()) {
      return {StatusOf(checked.error().code()).http_status, checked.error().message(), nullptr};
    }
  }
  if (long_bodies_->fetch_add(1) >= options_.max_long_uploads) {
    long_bodies_->fetch_sub(1);
    return {429, "as many long uploads run as this server takes at once; try again soon", nullptr};
  }
  const auto give_back = [places = long_bodies_](const int*) { places->fetch_sub(1); };
  return {0, "", std::shared_ptr<const int>(&options_.max_long_uploads, give_back)};
}

void Server::Dispatch(IoThread* io, RequestKey key, HttpRequest request) {
  if (!HostAllowed(request.host)) {
    return io->Respond(
        key,
        ErrorResponse(PermissionDenied(
            "This server answers for its own host names only; see --allowed-hosts")));
  }
  const Route route = FindRoute(request.method, request.path);
  std::string more = CorsLines(options_.allowed_origins, request, route.methods);
  if (request.method == "OPTIONS" && route.endpoint == nullptr) {
    return io->Respond(key, NoEndpointAnswer(request, route), std::move(more));
  }
  if (!request.session.empty()) {
    more += "X-Session-Id: " + request.session + "\r\n";
  }
  tenant::Refusal refusal;
  auto admitted = Admit(request, route.endpoint, &refusal);
  const auto refuse = [&](const Error& error, const Fault& fault) {
    auto* const body = route.endpoint == nullptr ? ErrorBody : route.endpoint->error_body;
    io->Respond(key, ErrorResponseWithBody(error, body(error, fault), fault), std::move(more));
  };
  if (!admitted.ok()) {
    more += RateLimitLines(refusal.limits);
    return refuse(admitted.error(), FaultOfGate(admitted.error(), refusal));
  }
  if (route.endpoint == nullptr) {
    return io->Respond(key, NoEndpointAnswer(request, route), std::move(more));
  }
  request.path_parameter = PathParameter(route.endpoint->path, request.path).value_or("");
  ServerContext context{.model = *model_,
                        .service = *service_,
                        .metrics = metrics_,
                        .responses = &responses_,
                        .running = &running_,
                        .files = files_.get(),
                        .batches = batches_.get(),
                        .draining = draining(),
                        .started_ns = started_ns_,
                        .arrived_ns = NowNs(),
                        .session = request.session,
                        .admission = *std::move(admitted)};
  if (route.endpoint->needs_model) {
    Fault fault;
    const bool refusing = refusing_.load(std::memory_order_acquire);
    if (auto error = NotServing(service_->phase(), refusing, &fault)) {
      return refuse(*error, fault);
    }
  }
  if (route.endpoint->needs_model) {
    RequestSpan span;
    span.traceparent = request.traceparent;
    span.operation = route.endpoint->path;
    span.request_id = request.request_id;
    context.span = OpenSpan::Begin(options_.spans, std::move(span));
  }
  if (route.endpoint->place == Place::kInline) {
    return io->Respond(key,
                       std::get<HttpResponse>(RunHandler(*route.endpoint, context, request)),
                       std::move(more));
  }
  const Place place = route.endpoint->place;
  const auto lane = place == Place::kHeavy  ? RequestPool::Lane::kHeavy
                    : place == Place::kSlow ? RequestPool::Lane::kSlow
                                            : RequestPool::Lane::kLight;
  if (!pool_->TryRun(
          lane, MakeJob(io, key, *route.endpoint, std::move(context), std::move(request), more))) {
    Fault fault;
    const Error error = TooManyUnread(&fault);
    refuse(error, fault);
  }
}

RequestPool::Job Server::MakeJob(IoThread* io,
                                 RequestKey key,
                                 const Endpoint& endpoint,
                                 ServerContext context,
                                 HttpRequest request,
                                 std::string more) {
  return [this,
          io,
          key,
          &endpoint,
          context = std::move(context),
          request = std::move(request),
          more = std::move(more)]() mutable {
    auto outcome =
        std::make_shared<Outcome>(RunHandler(endpoint, context, request, options_.strict_requests));
    std::string().swap(request.body);
    context.span.reset();          // the generation's alone, or ended
    request.upload_place.reset();  // free before its client can read the answer
    if (context.admission != nullptr) {
      more += RateLimitLines(context.admission->Limits());
      context.admission.reset();  // a place is free before its client can read the answer
    }
    if (!model_->version.empty()) {
      more += "X-Inferd-Model-Version: " + model_->version + "\r\n";
    }
    more += LoadMetricsLine(request.load_metrics, *service_);
    io->Post([io, key, outcome, more = std::move(more)]() mutable {
      if (auto* response = std::get_if<HttpResponse>(outcome.get())) {
        io->Respond(key, std::move(*response), std::move(more));
      } else {
        io->Start(key, std::move(std::get<std::unique_ptr<Generation>>(*outcome)), std::move(more));
      }
    });
  };
}

}  // namespace inferd::api
