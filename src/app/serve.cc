// SPDX-License-Identifier: Apache-2.0
// `inferd serve`: the leader and its front end from start to an orderly end; on further hosts the
// node agent.
#include "api/grpc/grpc_server.h"
#include "api/grpc/otlp_exporter.h"
#include "api/http/tls.h"
#include "api/server/server.h"
#include "app/commands.h"
#include "app/model_text.h"
#include "app/rendezvous.h"
#include "app/settings.h"
#include "app/signals.h"
#include "app/tenancy.h"
#include "app/warmup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "leader/node_agent.h"

#include <poll.h>
#include <sys/resource.h>

#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace inferd::app {
namespace {

constexpr int kWatchMs = 500;
constexpr int kDrainPollMs = 20;
constexpr std::int64_t kStragglersMs = 300;
constexpr std::int64_t kLastAnswersMs = 1000;

bool IsLoopback(const std::string& host) {
  return host.starts_with("127.") || host == "::1" || host == "localhost";
}

api::HttpOptions ToHttpOptions(const HttpConfig& config) {
  api::HttpOptions options;
  options.host = config.host;
  options.port = static_cast<std::uint16_t>(config.port);
  options.io_threads = static_cast<int>(config.io_threads);
  options.request_threads = static_cast<int>(config.request_threads);
  options.max_connections = static_cast<std::size_t>(config.max_connections);
  options.max_body_bytes = static_cast<std::size_t>(config.max_body_bytes);
  options.access_log = config.access_log;
  options.allowed_origins = config.allowed_origins;
  options.uds = config.uds;
  options.strict_requests = config.strict_requests;
  options.heartbeat_ms = config.heartbeat_s * 1000;
  if (!config.uds.empty()) {
    options.allowed_hosts = config.allowed_hosts;  // no web page reaches a Unix socket
  } else if (IsLoopback(config.host)) {
    options.allowed_hosts = {"localhost", "127.0.0.1", "[::1]", config.host};
    options.allowed_hosts.insert(
        options.allowed_hosts.end(), config.allowed_hosts.begin(), config.allowed_hosts.end());
  } else {
    options.allowed_hosts = config.allowed_hosts;
  }
  for (const std::string& host : config.allowed_hosts) {
    if (host == "*") {
      options.allowed_hosts.clear();
      break;
    }
  }
  return options;
}

std::optional<api::StorageOptions> ToStorageOptions(const BatchConfig& config) {
  if (config.files_dir.empty()) {
    return std::nullopt;
  }
  api::StorageOptions options;
  options.folder = config.files_dir;
  options.files.max_file_bytes = config.max_file_bytes;
  options.files.max_total_bytes = config.max_files_bytes;
  options.files.max_files = config.max_files;
  options.batches.max_running = static_cast<std::size_t>(config.max_num_seqs);
  return options;
}

/// nullopt: no gRPC.
Result<std::optional<api::GrpcOptions>> ToGrpcOptions(const Config& config) {
  const std::string& port = config.grpc.port;
  if (port == "none" || port == "-1") {
    return std::optional<api::GrpcOptions>();
  }
  api::GrpcOptions options;
  options.host = config.http.host == "localhost" ? "127.0.0.1" : config.http.host;
  options.request_threads = static_cast<int>(config.http.request_threads);
  options.max_message_bytes = static_cast<std::size_t>(config.http.max_body_bytes);
  options.access_log = config.http.access_log;
  options.ssl_certfile = config.http.ssl_certfile;
  options.ssl_keyfile = config.http.ssl_keyfile;
  options.ssl_ca_certs = config.http.ssl_ca_certs;
  options.ssl_refresh = config.http.enable_ssl_refresh;
  if (port == "auto") {
    options.port = config.http.port == 0 ? 0 : options.port;
    return std::optional(options);
  }
  const char* const end = port.data() + port.size();
  const auto [at, error] = std::from_chars(port.data(), end, options.port);
  if (error != std::errc() || at != end) {
    return InvalidArgument("--grpc-port is '{}'; it must be from 0 to 65535, auto or none", port);
  }
  return std::optional(options);
}

struct Tls {
  std::shared_ptr<api::TlsContext> context;  // null: plain HTTP
  std::unique_ptr<FileWatch> watch;          // with --enable-ssl-refresh
};

Result<Tls> OpenTls(const HttpConfig& config) {
  Tls tls;
  if (config.ssl_certfile.empty() && config.ssl_keyfile.empty()) {
    if (!config.ssl_ca_certs.empty()) {
      return InvalidArgument("--ssl-ca-certs needs --ssl-certfile and --ssl-keyfile");
    }
    return tls;
  }
  if (config.ssl_certfile.empty() || config.ssl_keyfile.empty()) {
    return InvalidArgument("TLS needs both --ssl-certfile and --ssl-keyfile");
  }
  if (!config.uds.empty()) {
    return InvalidArgument("--uds and --ssl-certfile exclude each other");
  }
  INFERD_ASSIGN(
      tls.context,
      api::TlsContext::Load({config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs}));
  if (config.enable_ssl_refresh) {
    std::vector<std::string> files{config.ssl_certfile, config.ssl_keyfile};
    if (!config.ssl_ca_certs.empty()) {
      files.push_back(config.ssl_ca_certs);
    }
    tls.watch = std::make_unique<FileWatch>(std::move(files), [context = tls.context] {
      if (const auto loaded = context->Reload(); loaded.ok()) {
        log::Info("app", "the TLS certificate was loaded again");
      } else {
        log::Warning("app", "the TLS certificate stays as it was: {}", loaded.error().message());
      }
    });
  }
  return tls;
}

/// A connection needs a descriptor; the usual soft limit of 1024 is for programs that use select.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

Result<> RunAgent(const Config& config) {
  leader::NodeAgentOptions options;
  options.leader = config.cluster.leader;
  if (options.leader.empty()) {
    return InvalidArgument(
        "--node-rank {} needs --leader HOST:PORT, the control port of the leader",
        config.cluster.node_rank);
  }
  options.node_rank = static_cast<std::int32_t>(config.cluster.node_rank);
  options.data_address = config.cluster.data_address;
  options.connect_deadline_ms = config.cluster.rendezvous_timeout_s * 1000;
  options.peer_deadline_ms = config.cluster.peer_timeout_s * 1000;
  INFERD_ASSIGN(options.secret, ClusterSecret(config.cluster));
  std::atomic<bool> stop{false};
  std::atomic<bool> ended{false};
  std::thread watch([&] {
    while (!ended.load() && !StopRequested()) {
      WaitForStop(kWatchMs);
    }
    stop.store(true);
  });
  Result<> result = leader::RunNodeAgent(options, stop);
  ended.store(true);
  watch.join();
  return result;
}

Result<> Announce(const HttpConfig& http, std::uint16_t port) {
  const std::string shown =
      http.host.find(':') == std::string::npos ? http.host : "[" + http.host + "]";
  if (!http.uds.empty()) {
    log::Info("app", "listening on {}", http.uds);
    return {};
  }
  log::Info(
      "app", "listening on {}://{}:{}", http.ssl_certfile.empty() ? "http" : "https", shown, port);
  if (!http.port_file.empty()) {
    INFERD_TRY(base::WriteFileAtomic(http.port_file, std::to_string(port) + "\n"));
  }
  return {};
}

/// Null: nothing is traced.
Result<std::shared_ptr<api::OtlpExporter>> StartSpans(const std::string& endpoint) {
  if (endpoint.empty()) {
    return std::shared_ptr<api::OtlpExporter>();
  }
  const char* const protocol = std::getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL");
  if (protocol != nullptr && std::string_view(protocol) != "grpc") {
    return InvalidArgument(
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is {}; spans are sent by grpc only, which collectors "
        "take on port 4317",
        protocol);
  }
  api::OtlpOptions options;
  options.endpoint = endpoint;
  if (const char* const service = std::getenv("OTEL_SERVICE_NAME");
      service != nullptr && *service != '\0') {
    options.service = service;
  }
  return api::OtlpExporter::Start(options);
}

/// Null: no gRPC.
Result<std::unique_ptr<api::GrpcServer>> StartGrpc(const Config& config,
                                                   std::shared_ptr<const api::ServedModel> model,
                                                   leader::InferenceService* service,
                                                   api::Server* beside,
                                                   tenant::Gate* gate,
                                                   std::shared_ptr<api::SpanSink> spans) {
  INFERD_ASSIGN(auto options, ToGrpcOptions(config));
  std::unique_ptr<api::GrpcServer> server;
  if (!options) {
    return server;
  }
  options->spans = std::move(spans);
  INFERD_ASSIGN(
      server,
      api::GrpcServer::Start(
          *options, std::move(model), service, beside->mutable_metrics(), gate, beside->running()));
  log::Info("app",
            "gRPC{} on {}:{}",
            options->ssl_certfile.empty() ? "" : " over TLS",
            options->host,
            server->port());
  if (!config.grpc.port_file.empty()) {
    INFERD_TRY(base::WriteFileAtomic(config.grpc.port_file, std::to_string(server->port()) + "\n"));
  }
  return server;
}

/// Until a signal comes, or the model is lost for good.
Result<> Watch(leader::Leader* leader) {
  while (!StopRequested()) {
    WaitForStop(kWatchMs);
    if (leader->phase() == leader::Phase::kFailed) {
      return leader->WaitUntilReady([](const leader::LoadProgress&) {}, [] { return false; });
    }
  }
  return {};
}

/// Nothing runs that could end by itself.
bool IsAsleep(const leader::Leader& leader) {
  return leader.sleep_level() > 0 || leader.phase() == leader::Phase::kLoading;
}

/// Unready at once; after a while new work is refused, and accepted work finishes.
void Drain(const HttpConfig& http, api::Server* server, api::GrpcServer* grpc) {
  server->BeginLeaving();
  if (grpc != nullptr) {
    grpc->BeginLeaving();
  }
  if (http.drain_delay_s > 0) {
    log::Info("app", "not ready any more; new requests are taken for {} s", http.drain_delay_s);
    const std::int64_t refuse_ms = base::SteadyClock::Get().NowMs() + http.drain_delay_s * 1000;
    while (base::SteadyClock::Get().NowMs() < refuse_ms) {
      poll(nullptr, 0, kDrainPollMs);
    }
  }
  server->BeginDrain();
  if (grpc != nullptr) {
    grpc->BeginDrain();
  }
  log::Info("app",
            "shutting down: {} requests run; they get {} s",
            server->open_requests(),
            http.shutdown_timeout_s);
  const std::int64_t deadline_ms =
      base::SteadyClock::Get().NowMs() + http.shutdown_timeout_s * 1000;
  // A client whose stream has just ended may be sending its next request on that connection: for a
  // moment all are still answered (503), rather than met by a closed socket.
  std::int64_t quiet_ms = base::SteadyClock::Get().NowMs() + kStragglersMs;
  while (server->open_requests() > 0 || base::SteadyClock::Get().NowMs() < quiet_ms) {
    if (server->open_requests() > 0) {
      quiet_ms = base::SteadyClock::Get().NowMs() + kStragglersMs;
    }
    if (base::SteadyClock::Get().NowMs() >= deadline_ms) {
      if (server->open_requests() == 0) {
        return;
      }
      log::Warning("app",
                   "{} requests are cut off after {} s",
                   server->open_requests(),
                   http.shutdown_timeout_s);
      return;
    }
    poll(nullptr, 0, kDrainPollMs);
  }
}

/// The engine has ended what ran with an error: lets clients read it.
void AwaitAnswers(const api::Server& server) {
  const std::int64_t deadline_ms = base::SteadyClock::Get().NowMs() + kLastAnswersMs;
  while (server.open_requests() > 0 && base::SteadyClock::Get().NowMs() < deadline_ms) {
    poll(nullptr, 0, kDrainPollMs);
  }
}

}  // namespace

Result<> Serve(const Config& given) {
  Config config = given;
  INFERD_ASSIGN(const std::string by, ApplyRendezvous(&std::getenv, &config.cluster));
  if (!by.empty()) {
    log::Info("app",
              "host {} of {}, leader {}, by {}",
              config.cluster.node_rank,
              config.cluster.nnodes,
              config.cluster.leader,
              by);
  }
  if (config.cluster.node_rank != 0) {
    return RunAgent(config);
  }
  RaiseDescriptorLimit();
  INFERD_ASSIGN(const store::Model model, FindModel(config.model, config.worker.device));
  INFERD_ASSIGN(const std::shared_ptr<const api::ServedModel> served,
                MakeServedModel(model, config.model));
  INFERD_ASSIGN(const api::MetricsCompat compat,
                api::ParseMetricsCompat(config.observability.metrics_compat));
  INFERD_ASSIGN(const std::shared_ptr<api::OtlpExporter> spans,
                StartSpans(config.observability.otlp_traces_endpoint));
  INFERD_ASSIGN(const WarmupRequests warmup, ReadWarmupFile(config.model.warmup_file));
  INFERD_ASSIGN(const Tls tls, OpenTls(config.http));
  INFERD_ASSIGN(const Tenancy tenancy, OpenTenancy(config.tenant, served->name(), served->version));
  INFERD_ASSIGN(leader::LeaderOptions options, MakeLeaderOptions(config, model));
  INFERD_ASSIGN(const auto leader, leader::Leader::Start(std::move(options)));
  log::Info("app", "memory\n{}", spec::Describe(leader->ledger()));
  api::HttpOptions http = ToHttpOptions(config.http);
  http.tls = tls.context;
  http.metrics_compat = compat;
  http.spans = spans;
  WarmingService service(leader.get(), warmup.lines.empty());
  std::optional<Warmup> warm_up;
  auto server =
      api::Server::Start(http, served, &service, tenancy.gate, ToStorageOptions(config.batch));
  if (!server.ok()) {
    leader->Stop();
    return server.error();
  }
  auto grpc = StartGrpc(config, served, &service, server->get(), tenancy.gate.get(), spans);
  Result<> result = grpc.ok() ? Announce(config.http, (*server)->port()) : grpc.error();
  if (result.ok()) {
    result = WaitUntilReady(leader.get());
  }
  if (result.ok() && !warmup.lines.empty()) {
    warm_up.emplace(served, leader.get());
    warm_up->Run(warmup, config.model.warmup_timeout_s, [] { return StopRequested(); });
    service.Open();
  }
  if (result.ok() && !StopRequested()) {
    log::Info("app",
              "ready: {} with tp {} pp {} ep {} dp {}, {} tokens of context",
              config.model.model,
              config.parallel.tp,
              config.parallel.pp,
              config.parallel.ep,
              config.parallel.dp,
              leader->max_model_len());
    result = Watch(leader.get());
  }
  if (StopRequested()) {
    result = {};
    if (IsAsleep(*leader)) {  // fails what was kept, and a wake in progress
      leader->BeginDrain();
      leader->Stop();
    }
    Drain(config.http, server->get(), grpc.ok() ? grpc->get() : nullptr);
  }
  leader->BeginDrain();
  if (!result.ok()) {
    leader->Stop();
    AwaitAnswers(**server);
  }
  if (grpc.ok() && *grpc != nullptr) {
    (*grpc)->Stop();
  }
  (*server)->Stop();
  leader->Stop();
  if (spans != nullptr) {
    spans->Stop();
  }
  return result;
}

}  // namespace inferd::app
