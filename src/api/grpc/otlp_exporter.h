// SPDX-License-Identifier: Apache-2.0
// --otlp-traces-endpoint: sends spans to an OpenTelemetry collector over gRPC, in batches, from a
// thread of its own.
#pragma once

#include "api/core/request_span.h"
#include "inferd/result.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace inferd::api {

struct OtlpOptions {
  std::string endpoint;  // "http://HOST:PORT", "grpc://HOST:PORT", "https://..." or "HOST:PORT"
  std::string service = "inferd";
  std::size_t max_queued = 4096;  // spans that wait; what goes beyond is dropped
  std::size_t max_batch = 512;
  std::int64_t period_ms = 1'000;         // the longest that a span waits for its batch
  std::int64_t call_deadline_ms = 5'000;  // of one try; a batch gets three
  std::int64_t stop_deadline_ms = 3'000;  // for all that waits at the end
};

/// Thread-safe.
class OtlpExporter : public SpanSink {
 public:
  /// Nothing is connected yet. kInvalidArgument: no such endpoint.
  static Result<std::shared_ptr<OtlpExporter>> Start(const OtlpOptions& options);

  /// Sends what waits, within stop_deadline_ms, and ends the thread. What comes later is dropped.
  virtual void Stop() = 0;
};

}  // namespace inferd::api
