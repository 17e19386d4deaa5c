// SPDX-License-Identifier: Apache-2.0
// What the front end observes itself, and the text of /metrics made from that and from the leader's
// counters. Observing is lock-free; prometheus-cpp writes the text.
#pragma once

#include "api/core/batch_state.h"
#include "api/core/request_span.h"
#include "inferd/result.h"
#include "leader/inference_service.h"
#include "tenant/gate.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inferd::api {

/// Cumulative counts under fixed upper bounds. Any thread.
class Histogram {
 public:
  static constexpr std::size_t kMaxBuckets = 32;
  explicit Histogram(std::span<const double> upper_bounds);

  void Observe(std::int64_t ns) { Put(static_cast<double>(ns) * 1e-9); }
  void Add(std::int64_t count) { Put(static_cast<double>(count)); }

  struct Snapshot {
    std::vector<double> upper_bounds;
    std::vector<std::uint64_t> counts;  // per bucket, not cumulative; one more than bounds
    double sum = 0;
  };
  Snapshot Read() const;

 private:
  void Put(double value);

  std::span<const double> bounds_;  // static tables
  std::array<std::atomic<std::uint64_t>, kMaxBuckets + 1> counts_{};
  std::atomic<double> sum_{0};
};

/// Other servers' names that /metrics has beside inferd's own (--metrics-compat).
struct MetricsCompat {
  bool vllm = true;       // as of today
  bool vllm_old = false;  // those that vLLM has given up and dashboards still ask for
  bool sglang = false;
  bool trtllm = false;
};

/// `names`: "vllm", "vllm-old", "sglang", "trtllm"; or "none" alone. kInvalidArgument names
/// another.
Result<MetricsCompat> ParseMetricsCompat(const std::vector<std::string>& names);

/// One per server. Any thread.
class Metrics {
 public:
  Metrics();

  Histogram time_to_first_token;
  Histogram inter_token_latency;
  Histogram time_per_output_token;
  Histogram e2e_latency;
  Histogram prompt_tokens_per_request;
  Histogram generation_tokens_per_request;

  std::atomic<std::uint64_t> connections_accepted{0};
  std::atomic<std::uint64_t> connections_refused{0};
  std::atomic<std::int64_t> connections_open{0};
  std::atomic<std::int64_t> requests_open{0};  // taken in, answer not yet sent
  std::atomic<std::int64_t> generations_open{0};
  std::atomic<std::uint64_t> clients_left{0};  // while their request ran
  std::atomic<std::uint64_t> slow_clients_cut{0};
  std::atomic<std::uint64_t> events_lost{0};

  std::array<std::atomic<std::int64_t>, kBatchStateNames.size()> batches{};  // by BatchState
  std::atomic<std::uint64_t> batch_lines_completed{0};
  std::atomic<std::uint64_t> batch_lines_failed{0};
  std::atomic<std::uint64_t> batch_lines_retried{0};  // put off: no room, or a worker was lost
  std::atomic<std::int64_t> batch_lines_running{0};
  /// The gate whose ledger's losses are shown; before the first Render.
  void Watch(std::shared_ptr<const tenant::Gate> gate) { gate_ = std::move(gate); }
  /// The same of a sink's counts.
  void Watch(std::shared_ptr<const SpanSink> spans) { spans_ = std::move(spans); }

  /// Before the first Render.
  void SetCompat(const MetricsCompat& compat) { compat_ = compat; }

  void CountFinish(leader::FinishReason reason);
  void CountResponse(int status);

  /// The text exposition format. May take a millisecond: not on an I/O thread.
  std::string Render(const leader::InferenceService& service, std::string_view model_name) const;

 private:
  MetricsCompat compat_;
  std::shared_ptr<const SpanSink> spans_;                    // null: nothing is traced
  std::shared_ptr<const tenant::Gate> gate_;                 // null: everybody is served
  std::array<std::atomic<std::uint64_t>, 8> finishes_{};     // by FinishReason
  std::array<std::atomic<std::uint64_t>, 600> responses_{};  // by HTTP status
};

/// Content-Type of Render's text.
inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace inferd::api
