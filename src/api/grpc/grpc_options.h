// SPDX-License-Identifier: Apache-2.0
// How the gRPC front end listens and what it allows; plain data, filled by app.
#pragma once

#include "api/core/request_span.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace inferd::api {

struct GrpcOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8001;         // 0: any free one
  std::string ssl_certfile;          // PEM with its chain; empty: plain text
  std::string ssl_keyfile;           // PEM
  std::string ssl_ca_certs;          // PEM; empty: clients need no certificate
  bool ssl_refresh = false;          // load changed files for new connections
  int request_threads = 2;           // parse, template, tokenise
  std::size_t request_queue = 1024;  // requests that wait for those; beyond: RESOURCE_EXHAUSTED
  std::size_t max_generations = 4096;
  std::size_t max_message_bytes = 32U << 20;
  int max_streams_per_connection = 1024;
  std::int64_t stall_timeout_ms = 60'000;     // a stream's client takes nothing
  std::size_t hard_backlog_bytes = 8U << 20;  // text that waits for a stream's client
  std::size_t max_requests_per_stream = 64;   // that run at once in one ModelStreamInfer
  bool access_log = true;
  std::shared_ptr<SpanSink> spans;  // null: calls are not traced
};

}  // namespace inferd::api
