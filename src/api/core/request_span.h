// SPDX-License-Identifier: Apache-2.0
// A request as a trace shows it: one span from arrival to end, with what was asked and used and
// never a word of text.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

/// Plain data. Times of unix_ns are of the wall clock, latencies in nanoseconds; -1: it did not
/// come to that.
struct RequestSpan {
  std::string traceparent;  // W3C, of the caller; empty: none
  std::string operation;    // "/v1/chat/completions", "grpc:inferd.v1.Inference/Chat"
  std::string request_id;
  std::string model;
  std::int64_t began_unix_ns = 0;
  std::int64_t ended_unix_ns = 0;
  double temperature = -1, top_p = -1;
  std::int64_t max_tokens = -1;
  std::int32_t n = 1;
  std::string reply_id;
  std::vector<std::string> finish_reasons;
  std::int64_t input_tokens = 0, cached_tokens = 0, output_tokens = 0, reasoning_tokens = 0;
  std::int64_t queue_ns = -1, first_token_ns = -1, total_ns = -1;  // from arrival
  std::optional<Error> error;
  std::string error_param;  // path of the offending field; empty: none
};

/// W3C Trace Context in form: 00-<32 hex>-<16 hex>-<2 hex>, lower case.
bool IsTraceparent(std::string_view text);

/// Takes spans. Any thread; must not block.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  virtual void Put(RequestSpan span) = 0;
  virtual std::uint64_t exported() const = 0;
  virtual std::uint64_t dropped() const = 0;
};

/// The span of a request that runs; goes to the sink with its last owner. Used by one thread at a
/// time.
class OpenSpan {
 public:
  /// Null when `sink` is, or the caller's trace is not sampled.
  static std::shared_ptr<OpenSpan> Begin(std::shared_ptr<SpanSink> sink, RequestSpan span);

  OpenSpan(std::shared_ptr<SpanSink> sink, RequestSpan span);
  ~OpenSpan();
  OpenSpan(const OpenSpan&) = delete;
  OpenSpan& operator=(const OpenSpan&) = delete;

  RequestSpan& span() { return span_; }

 private:
  std::shared_ptr<SpanSink> sink_;
  RequestSpan span_;
};

}  // namespace inferd::api
