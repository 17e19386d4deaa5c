// SPDX-License-Identifier: Apache-2.0
// How the HTTP front end listens and what it allows; plain data, filled from inferd::HttpConfig by
// app.
#pragma once

#include "api/core/metrics.h"
#include "api/core/request_span.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace inferd::api {

class TlsContext;

struct HttpOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;              // 0: any free one
  std::string uds;                        // path of a Unix socket to listen on instead; empty: none
  std::shared_ptr<const TlsContext> tls;  // null: plain HTTP
  int io_threads = 1;
  int request_threads = 2;           // parse, template, tokenise
  std::size_t request_queue = 1024;  // requests that wait for those; beyond: 429
  std::size_t max_connections = 8192;
  std::size_t max_body_bytes = 32U << 20;
  std::size_t max_upload_bytes = 0;       // of uploads; not above max_body_bytes: the same
  int max_long_uploads = 4;               // bodies above max_body_bytes at once
  std::int64_t head_timeout_ms = 10'000;  // from accept, or from the first byte of a later request
  std::int64_t body_grace_ms = 10'000;    // after it a body must come at min_body_bytes_per_s
  std::int64_t min_body_bytes_per_s = 1024;
  std::int64_t min_upload_bytes_per_s = 128 << 10;  // of bodies above max_body_bytes
  std::int64_t idle_timeout_ms = 75'000;
  std::int64_t stall_timeout_ms =
      60'000;  // the client takes no bytes, or stays behind by soft_backlog_bytes
  std::size_t soft_backlog_bytes = 256U << 10;
  std::size_t hard_backlog_bytes = 8U << 20;
  std::int64_t linger_ms = 2'000;
  std::int64_t heartbeat_ms = 15'000;  // silence of an event stream before ": ping"; 0: never
  int unsent_in_kernel = 16 << 10;     // TCP_NOTSENT_LOWAT
  /// Values of Host (without port) that are answered; empty: any. Filled by default when bound to
  /// loopback only, so that a web page cannot reach a local server by rebinding a name.
  std::vector<std::string> allowed_hosts;
  /// Origins of web pages that may read answers: exact, or "*" for all. Empty: none.
  std::vector<std::string> allowed_origins;
  /// Unknown fields of a request's body are a 400 instead of being ignored.
  bool strict_requests = false;
  bool access_log = true;
  MetricsCompat metrics_compat;
  std::shared_ptr<SpanSink> spans;  // null: requests are not traced
};

}  // namespace inferd::api
