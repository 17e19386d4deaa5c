// SPDX-License-Identifier: Apache-2.0
#include "api/grpc/grpc_server.h"

#include "api/grpc/grpc_credentials.h"
#include "api/grpc/grpc_shared.h"
#include "api/grpc/services.h"
#include "base/check.h"
#include "base/error.h"
#include "base/log.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

constexpr std::uint32_t kHostIndex = 1000;  // I/O threads have the numbers from 0
constexpr auto kHealthPeriod = std::chrono::milliseconds(100);
constexpr auto kStopDeadline = std::chrono::seconds(1);
constexpr int kMetadataBytes = 16 << 10;
constexpr int kReflectionThreads = 8;
constexpr int kKeepaliveMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 20'000;
constexpr int kMinPingIntervalMs = 5'000;

}  // namespace

struct GrpcServer::Impl {
  Impl(const GrpcOptions& options,
       std::shared_ptr<const ServedModel> model,
       leader::InferenceService* service,
       Metrics* metrics,
       tenant::Gate* gate,
       RunningRequests* running)
      : shared{.options = options,
               .model = std::move(model),
               .service = *service,
               .metrics = *metrics,
               .host = nullptr,
               .pool = nullptr,
               .gate = gate,
               .running = running == nullptr ? own_running : *running,
               .draining = false} {
    shared.host = std::make_unique<GenerationHost>(
        GenerationHostOptions{.index = kHostIndex, .max_generations = options.max_generations},
        service,
        metrics);
    shared.pool = std::make_unique<RequestPool>(options.request_threads, options.request_queue);
  }

  Result<> Listen();
  void WatchHealth();
  void SetHealth(bool serving, bool alive);

  RunningRequests own_running;  // where no other front end has one
  GrpcShared shared;
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::unique_ptr<grpc::Server> server;
  int port = 0;

  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  std::thread health;
};

Result<> GrpcServer::Impl::Listen() {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  const GrpcOptions& options = shared.options;
  services.push_back(MakeInferenceService(&shared));
  services.push_back(MakeKserveService(&shared));
  services.push_back(MakeVllmService(&shared));
  INFERD_ASSIGN(const auto credentials, MakeGrpcCredentials(options));
  grpc::ServerBuilder builder;
  const std::string& host = options.host;
  const std::string shown = host.find(':') == std::string::npos ? host : "[" + host + "]";
  builder.AddListeningPort(shown + ":" + std::to_string(options.port), credentials, &port);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a port in use is an error
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  // Reflection is the only service with threads of its own.
  builder.SetResourceQuota(grpc::ResourceQuota("inferd").SetMaxThreads(kReflectionThreads));
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  for (const auto& service : services) {
    builder.RegisterService(service.get());
  }
  server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return FailedPrecondition(
        "cannot listen on {}:{} for gRPC; choose another --grpc-port or stop what uses it, or "
        "switch gRPC off with --grpc-port none",
        shown,
        options.port);
  }
  SetHealth(false, true);
  health = std::thread([this] {
    try {
      WatchHealth();
    } catch (const std::exception& error) {  // only a bug or an exhausted heap gets here
      base::CheckFailed("gRPC health thread", error.what());
    }
  });
  return {};
}

void GrpcServer::Impl::SetHealth(bool serving, bool alive) {
  grpc::HealthCheckServiceInterface* const check = server->GetHealthCheckService();
  check->SetServingStatus("", serving);  // by name: a liveness must not blink
  for (const char* const name : kServiceNames) {
    check->SetServingStatus(name, serving);
  }
  // As the probes of gateways name them.
  check->SetServingStatus("readiness", serving);
  check->SetServingStatus("liveness", alive);
}

/// Follows the leader's phase and its progress; Watch streams get a message when it changes.
void GrpcServer::Impl::WatchHealth() {
  bool serving = false;
  bool alive = true;
  std::unique_lock lock(mutex);
  while (!stop) {
    const bool ready = shared.ready();
    const bool moves = !shared.service.stall();
    if (ready != serving || moves != alive) {
      serving = ready;
      alive = moves;
      SetHealth(serving, alive);
    }
    changed.wait_for(lock, kHealthPeriod);
  }
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrpcServer::~GrpcServer() { Stop(); }

Result<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcOptions& options,
                                                      std::shared_ptr<const ServedModel> model,
                                                      leader::InferenceService* service,
                                                      Metrics* metrics,
                                                      tenant::Gate* gate,
                                                      RunningRequests* running) {
  auto impl = std::make_unique<Impl>(options, std::move(model), service, metrics, gate, running);
  std::unique_ptr<GrpcServer> server(new GrpcServer(std::move(impl)));
  INFERD_TRY(server->impl_->Listen());
  return server;
}

std::uint16_t GrpcServer::port() const { return static_cast<std::uint16_t>(impl_->port); }

void GrpcServer::BeginLeaving() {
  impl_->shared.leaving.store(true, std::memory_order_release);
  impl_->changed.notify_all();
}

void GrpcServer::BeginDrain() {
  BeginLeaving();
  impl_->shared.draining.store(true, std::memory_order_release);
}

void GrpcServer::Stop() {
  {
    const std::lock_guard lock(impl_->mutex);
    if (std::exchange(impl_->stop, true)) {
      return;
    }
  }
  BeginDrain();
  if (impl_->health.joinable()) {
    impl_->health.join();
  }
  // Running generations end first, with a status that says why; then whatever is left is cut.
  impl_->shared.host->Stop();
  if (impl_->server != nullptr) {
    impl_->server->Shutdown(std::chrono::system_clock::now() + kStopDeadline);
    impl_->server->Wait();
  }
  impl_->shared.pool.reset();
}

}  // namespace inferd::api
