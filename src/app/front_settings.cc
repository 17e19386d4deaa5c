// SPDX-License-Identifier: Apache-2.0
// The settings of what clients meet: HTTP, gRPC, batches, keys and the log.
#include "app/front_settings.h"

#include <cstdint>

namespace inferd::app {
namespace {

constexpr std::int64_t kInt32 = std::numeric_limits<std::int32_t>::max();

void AddHttp(HttpConfig* h, std::vector<Setting>* out) {
  out->insert(
      out->end(),
      {
          {"http.host", {"--host"}, "Address to listen on", &h->host},
          {"http.port", {"--port"}, "Port of the HTTP API; 0: any free one", &h->port, 0, 65'535},
          {"http.port_file",
           {"--port-file"},
           "File that the port is written to once it is open",
           &h->port_file},
          {"http.io_threads", {"--io-threads"}, "Threads for connections", &h->io_threads, 1, 64},
          {"http.request_threads",
           {"--request-threads"},
           "Threads that parse and tokenise",
           &h->request_threads,
           1,
           64},
          {"http.max_connections",
           {"--max-connections"},
           "Open connections per I/O thread",
           &h->max_connections,
           1,
           1'000'000},
          {"http.max_body_bytes",
           {"--max-body-bytes"},
           "Largest request body",
           &h->max_body_bytes,
           1024,
           1 << 30},
          {"http.allowed_hosts",
           {"--allowed-hosts"},
           "Host names answered besides localhost when bound to loopback, comma-separated; * for "
           "any",
           &h->allowed_hosts},
          {"http.allowed_origins",
           {"--allowed-origins"},
           "Origins of web pages that may use the API (CORS), comma-separated, as "
           "https://app.example; * for any",
           &h->allowed_origins},
          {"http.strict_requests",
           {"--strict-requests"},
           "Refuse requests that have fields this server does not know, instead of ignoring them",
           &h->strict_requests},
          {"http.uds",
           {"--uds"},
           "Listen on a Unix socket at this path instead of --host and --port",
           &h->uds},
          {"http.ssl_certfile",
           {"--ssl-certfile"},
           "TLS: PEM file with the certificate and its chain",
           &h->ssl_certfile},
          {"http.ssl_keyfile",
           {"--ssl-keyfile"},
           "TLS: PEM file with the certificate's private key",
           &h->ssl_keyfile},
          {"http.ssl_ca_certs",
           {"--ssl-ca-certs"},
           "TLS: PEM file with authorities; clients must show a certificate of one of them",
           &h->ssl_ca_certs},
          {"http.enable_ssl_refresh",
           {"--enable-ssl-refresh"},
           "TLS: load the files again when they change; new connections use them",
           &h->enable_ssl_refresh},
          {"http.enable_sleep_mode",
           {"--enable-sleep-mode"},
           "Answer POST /sleep and /wake_up, which give memory back and take it again; with keys "
           "they need the scope admin",
           &h->enable_sleep_mode},
          {"http.heartbeat_s",
           {"--stream-heartbeat"},
           "Seconds without an event after which a stream sends the comment `: ping`; 0: never",
           &h->heartbeat_s,
           0,
           3600},
          {"http.access_log", {"--access-log"}, "Log one line per request", &h->access_log},
          {"http.drain_delay_s",
           {"--drain-delay"},
           "Seconds after SIGTERM in which requests are still taken, while readiness is off",
           &h->drain_delay_s,
           0,
           3600},
          {"http.shutdown_timeout_s",
           {"--shutdown-timeout"},
           "Seconds that running requests get once new ones are refused",
           &h->shutdown_timeout_s,
           0,
           86'400},
      });
}

void AddGrpc(GrpcConfig* g, std::vector<Setting>* out) {
  out->insert(
      out->end(),
      {
          {"grpc.port",
           {"--grpc-port"},
           "Port of the gRPC API; 0: any free one; none: no gRPC; auto: 8001, or with --port 0 any "
           "free one",
           &g->port},
          {"grpc.port_file",
           {"--grpc-port-file"},
           "File that the gRPC port is written to once it is open",
           &g->port_file},
      });
}

void AddBatch(BatchConfig* b, std::vector<Setting>* out) {
  out->insert(out->end(),
              {
                  {"batch.files_dir",
                   {"--files-dir"},
                   "Folder for /v1/files and /v1/batches, of this server alone; empty: it has "
                   "neither",
                   &b->files_dir},
                  {"batch.max_file_bytes",
                   {"--max-file-bytes"},
                   "Largest file that may be uploaded",
                   &b->max_file_bytes,
                   1,
                   std::int64_t{1} << 30},
                  {"batch.max_files_bytes",
                   {"--max-files-bytes"},
                   "Bytes of all files together; uploads that go beyond are refused",
                   &b->max_files_bytes,
                   1},
                  {"batch.max_files",
                   {"--max-files"},
                   "Number of files; uploads beyond are refused",
                   &b->max_files,
                   1,
                   1'000'000},
                  {"batch.max_num_seqs",
                   {"--batch-max-num-seqs"},
                   "Requests of batches that run at once, behind all others",
                   &b->max_num_seqs,
                   1,
                   4096},
              });
}

void AddTenant(TenantConfig* t, LogConfig* log, std::vector<Setting>* out) {
  out->insert(
      out->end(),
      {
          {.key = "tenant.api_key",
           .flags = {"--api-key"},
           .help = "Keys that clients must send one of, comma-separated; better set INFERD_API_KEY "
                   "than a flag that others can see. Never printed",
           .value = &t->api_key,
           .secret = true},
          {"tenant.api_key_file",
           {"--api-key-file"},
           "YAML file of named keys with scopes and limits (docs/security.md); read again when it "
           "changes",
           &t->api_key_file},
          {"tenant.trust_tenant_header",
           {"--trust-tenant-header"},
           "Believe X-Inferd-Tenant and X-Inferd-Weight of whoever may ask (docs/security.md); "
           "only "
           "where nobody but a gateway that sets them reaches this server",
           &t->trust_tenant_header},
          {"tenant.inference_objectives",
           {"--inference-objectives"},
           "Priorities of what gateways name in X-Gateway-Inference-Objective, e.g. "
           "interactive=-10,bulk=10; lower goes first",
           &t->inference_objectives},
          {"tenant.usage_db",
           {"--usage-db"},
           "SQLite file that gets a row per request, for `inferd usage`; empty: none",
           &t->usage_db},
          {"tenant.usage_log",
           {"--usage-log"},
           "File that gets a JSON line per request; empty: none",
           &t->usage_log},
          {"tenant.usage_keep_days",
           {"--usage-keep-days"},
           "Days that rows of the usage file are kept; 0: for ever",
           &t->usage_keep_days,
           0,
           36'500},
          {"log.level",
           {"--log-level"},
           "Smallest level that is logged",
           &log->level,
           0,
           0,
           {"debug", "info", "warning", "error"}},
      });
}

void AddObservability(ObservabilityConfig* o, std::vector<Setting>* out) {
  out->insert(
      out->end(),
      {
          {"observability.metrics_compat",
           {"--metrics-compat"},
           "Names that /metrics has beside inferd's own, comma-separated: vllm, vllm-old, sglang, "
           "trtllm; or none (docs/observability.md)",
           &o->metrics_compat},
          {"observability.otlp_traces_endpoint",
           {"--otlp-traces-endpoint"},
           "Send a span per request to this OpenTelemetry collector, over gRPC, such as "
           "http://127.0.0.1:4317; empty: none",
           &o->otlp_traces_endpoint},
          {"observability.kv_events_config",
           {"--kv-events-config"},
           "Tell routers over ZeroMQ what the prefix cache holds, as JSON (docs/observability.md): "
           "{\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://*:5557\"}; also publisher, "
           "replay_endpoint, buffer_steps, hwm, max_queue_size, topic, encoding. Who can connect "
           "reads the prompts",
           &o->kv_events_config},
      });
}

}  // namespace

void AddFrontSettings(Config* config, std::vector<Setting>* out) {
  AddHttp(&config->http, out);
  AddGrpc(&config->grpc, out);
  AddBatch(&config->batch, out);
  AddTenant(&config->tenant, &config->log, out);
  AddObservability(&config->observability, out);
}

}  // namespace inferd::app
