// SPDX-License-Identifier: Apache-2.0
// Everything a user can set: plain structs, one per room. Filled in the order default < file <
// environment < flag; names, flags and help texts are in src/app/settings.cc, and
// configs/inferd.yaml shows them all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace inferd {

struct ModelConfig {
  std::string model;  // path, catalog name or hub name
  std::vector<std::string> served_model_name;
  std::string model_version;  // empty: a fingerprint of the files
  std::string chat_template;  // a file; empty: the model's own
  bool trust_request_chat_template = false;
  std::string tool_call_parser = "auto";  // a dialect's name, auto or none
  std::string reasoning_parser = "auto";
  std::string tool_dialects;       // a file with more dialects
  std::int64_t max_model_len = 0;  // 0: what the model and the memory allow
  std::string dtype = "auto";
  std::string quantization;
  bool offline = false;              // never download
  std::int64_t cache_bytes = 0;      // of models that were downloaded; 0: no bound
  std::int64_t connections = 8;      // to an object store
  bool force_include_usage = false;  // in streams that did not ask for it
  std::string warmup_file;           // requests that are run before the server is ready
  std::int64_t warmup_timeout_s = 300;
};

struct ParallelConfig {
  std::int64_t tp = 1;
  std::int64_t pp = 1;
  std::int64_t ep = 1;
  std::int64_t dp = 1;
  bool enable_expert_parallel = false;
  std::vector<std::int64_t> pp_partition;  // layers per stage
  bool allow_cross_host_tp = false;
  std::string distributed_backend = "auto";  // or nccl, host
};

struct WorkerSettings {
  std::string device = "cpu";
  std::int64_t threads = 0;         // per host; 0: all CPUs of the process
  std::int64_t kv_cache_bytes = 0;  // per host; 0: chosen from the free memory
  std::string kv_cache_dtype = "auto";
  double gpu_memory_utilization = 0.9;
  bool batch_invariant = false;  // the same bits for a request, whatever runs beside it
  bool enforce_eager = false;    // no CUDA graphs
  std::vector<std::int64_t> cuda_graph_sizes;  // rows; empty: chosen by scheduler.max_num_seqs
};

struct SchedulerConfig {
  std::int64_t max_num_seqs = 64;
  std::int64_t max_num_batched_tokens = 512;
  std::string target_itl = "150ms";  // "0": no bound
  std::int64_t max_waiting = 1024;
  std::int64_t max_waiting_tokens = 0;     // of prompts; 0: no limit
  std::int64_t max_predicted_wait_ms = 0;  // 0: no limit
  bool enable_prefix_caching = true;
  std::int64_t step_deadline_ms = 30'000;
  std::int64_t queue_deadline_ms = 0;        // 0: none
  std::int64_t stall_deadline_ms = 300'000;  // 0: none
  std::int64_t recovery_deadline_ms = 300'000;
  std::string speculative_config;  // JSON as vLLM takes it; empty: no guessing ahead
};

struct ClusterConfig {
  std::int64_t nnodes = 1;
  std::int64_t node_rank = 0;  // -1: the leader gives one
  std::string leader;  // host:port of the leader's control port; on the leader: where it listens
  std::string data_address;  // this host's address for data between hosts
  std::string secret_file;
  std::string runtime_dir;  // for the control socket; empty: under $TMPDIR or /tmp
  std::int64_t rendezvous_timeout_s = 1800;
  std::int64_t peer_timeout_s = 60;
};

struct HttpConfig {
  std::string host = "127.0.0.1";
  std::int64_t port = 8000;
  std::string port_file;  // the chosen port is written here
  std::int64_t io_threads = 1;
  std::int64_t request_threads = 2;
  std::int64_t max_connections = 8192;
  std::int64_t max_body_bytes = 32 << 20;
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> allowed_origins;  // of web pages, for CORS
  std::string uds;                           // listen on this Unix socket instead
  std::string ssl_certfile, ssl_keyfile;     // TLS when both are given
  std::string ssl_ca_certs;                  // clients must show a certificate of these
  bool enable_ssl_refresh = false;
  bool strict_requests = false;   // unknown fields of a request are refused
  std::int64_t heartbeat_s = 15;  // of streams that have nothing to say; 0: none
  bool access_log = true;
  bool enable_sleep_mode = false;  // POST /sleep and /wake_up
  std::int64_t drain_delay_s = 0;  // unready, yet serving, before new work is refused
  std::int64_t shutdown_timeout_s = 30;
};

struct GrpcConfig {
  std::string port = "auto";  // a number, "none", or "auto": 8001, or any free one with http.port 0
  std::string port_file;      // the chosen port is written here
};

struct TenantConfig {
  std::vector<std::string> api_key;
  std::string api_key_file;
  bool trust_tenant_header = false;
  std::vector<std::string> inference_objectives;  // NAME=PRIORITY
  std::string usage_db;                           // SQLite file; empty: none
  std::string usage_log;                          // JSON lines; empty: none
  std::int64_t usage_keep_days = 400;             // rows of usage_db; 0: for ever
};

struct BatchConfig {
  std::string files_dir;  // of uploaded files and batches; empty: there are none
  std::int64_t max_file_bytes = 200 << 20;
  std::int64_t max_files_bytes = std::int64_t{10} << 30;  // of all files
  std::int64_t max_files = 10'000;
  std::int64_t max_num_seqs = 8;  // lines of batches that run at once
};

struct ObservabilityConfig {
  std::vector<std::string> metrics_compat = {"vllm"};  // other servers' names on /metrics
  std::string otlp_traces_endpoint;                    // gRPC port of a collector; empty: no traces
  std::string kv_events_config;                        // JSON as vLLM takes it; empty: no KV events
};

struct LogConfig {
  std::string level = "info";
};

struct Config {
  ModelConfig model;
  ParallelConfig parallel;
  WorkerSettings worker;
  SchedulerConfig scheduler;
  ClusterConfig cluster;
  HttpConfig http;
  GrpcConfig grpc;
  TenantConfig tenant;
  BatchConfig batch;
  LogConfig log;
  ObservabilityConfig observability;
};

}  // namespace inferd
