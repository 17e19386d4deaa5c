// SPDX-License-Identifier: Apache-2.0
#include "api/core/metrics.h"

#include "api/core/metrics_page.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace inferd::api {
namespace {

// vLLM's buckets, so that dashboards' quantiles agree; finer ones for inter-token time in front.
constexpr double kTtft[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                            1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
constexpr double kItl[] = {.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3,
                           .4,   .5,    .75,  1,   2.5,  5,   7.5,  10, 20,  40, 80};
constexpr double kE2e[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                           30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
constexpr double kTokens[] = {1,
                              2,
                              5,
                              10,
                              20,
                              50,
                              100,
                              200,
                              500,
                              1000,
                              2000,
                              5000,
                              10000,
                              20000,
                              50000,
                              100000,
                              200000,
                              500000,
                              1000000};

double Load(const std::atomic<std::uint64_t>& value) {
  return static_cast<double>(value.load(std::memory_order_relaxed));
}

void AddBatches(const Metrics& metrics, MetricsPage* page) {
  std::vector<std::pair<MetricsPage::Label, double>> states;
  for (std::size_t state = 0; state < kBatchStateNames.size(); ++state) {
    states.push_back({{"state", std::string(kBatchStateNames[state])},
                      static_cast<double>(metrics.batches[state].load())});
  }
  page->Gauges("inferd_batches", nullptr, "Batches that are kept, by state.", states);
  page->Counters("inferd_batch_lines_total",
                 nullptr,
                 "Requests of batches that were answered, by outcome.",
                 {{{"outcome", "completed"}, Load(metrics.batch_lines_completed)},
                  {{"outcome", "failed"}, Load(metrics.batch_lines_failed)}});
  page->Counter("inferd_batch_lines_retried_total",
                nullptr,
                "Requests of batches that were put off and tried again.",
                Load(metrics.batch_lines_retried));
  page->Gauge("inferd_batch_lines_running",
              nullptr,
              "Requests of batches that run now.",
              static_cast<double>(metrics.batch_lines_running.load()));
}

leader::ReplicaStats Sum(const std::vector<leader::ReplicaStats>& replicas) {
  leader::ReplicaStats sum;
  for (const auto& r : replicas) {
    sum.running += r.running;
    sum.waiting += r.waiting;
    sum.waiting_tokens += r.waiting_tokens;
    sum.predicted_wait_ms = std::max(sum.predicted_wait_ms, r.predicted_wait_ms);
    sum.page_tokens = r.page_tokens;
    sum.kv_dtype = r.kv_dtype;
    sum.kv_pages_total += r.kv_pages_total;
    sum.kv_pages_used += r.kv_pages_used;
    sum.kv_pages_cached += r.kv_pages_cached;
    sum.prompt_tokens += r.prompt_tokens;
    sum.generated_tokens += r.generated_tokens;
    sum.prefix_queries += r.prefix_queries;
    sum.prefix_hits += r.prefix_hits;
    sum.preemptions += r.preemptions;
    sum.drafts += r.drafts;
    sum.draft_tokens += r.draft_tokens;
    sum.accepted_tokens += r.accepted_tokens;
    sum.kv_event_batches += r.kv_event_batches;
    sum.kv_event_batches_dropped += r.kv_event_batches_dropped;
    sum.steps += r.steps;
    sum.restarts += r.restarts;
  }
  return sum;
}

void AddEngine(const leader::InferenceService& service, MetricsPage* page) {
  const auto replicas = service.stats();
  const leader::ReplicaStats sum = Sum(replicas);
  const auto real = [](auto v) { return static_cast<double>(v); };
  page->Gauge("inferd_num_requests_running",
              "vllm:num_requests_running",
              "Sequences in the running batch.",
              real(sum.running));
  page->Gauge("inferd_num_requests_waiting",
              "vllm:num_requests_waiting",
              "Requests that wait for a place.",
              real(sum.waiting));
  page->Gauge("inferd_prompt_tokens_waiting",
              nullptr,
              "Tokens of prompts without their first token.",
              real(sum.waiting_tokens));
  page->Gauge("inferd_predicted_wait_seconds",
              nullptr,
              "Wait of a newcomer at priority 0, by the rate of late, on the busiest replica.",
              real(sum.predicted_wait_ms) * 1e-3);
  page->Gauge("inferd_kv_cache_usage_perc",
              "vllm:kv_cache_usage_perc",
              "KV pages in use, 0 to 1.",
              KvUse(sum));
  page->Gauge(
      "inferd_kv_pages_total", nullptr, "KV pages of all replicas.", real(sum.kv_pages_total));
  page->Gauge(
      "inferd_kv_pages_used", nullptr, "KV pages that sequences hold.", real(sum.kv_pages_used));
  page->Gauge("inferd_kv_pages_cached",
              nullptr,
              "KV pages kept for the prefix cache only.",
              real(sum.kv_pages_cached));
  page->Counter("inferd_prompt_tokens_total",
                "vllm:prompt_tokens_total",
                "Prompt tokens taken in.",
                real(sum.prompt_tokens));
  page->Counter("inferd_generation_tokens_total",
                "vllm:generation_tokens_total",
                "Tokens generated.",
                real(sum.generated_tokens));
  page->Counter("inferd_prefix_cache_queries_total",
                "vllm:prefix_cache_queries_total",
                "Prompt tokens looked up in the prefix cache.",
                real(sum.prefix_queries));
  page->Counter("inferd_prefix_cache_hits_total",
                "vllm:prefix_cache_hits_total",
                "Prompt tokens found in the prefix cache.",
                real(sum.prefix_hits));
  page->Counter("inferd_spec_decode_num_drafts_total",
                "vllm:spec_decode_num_drafts_total",
                "Steps of a sequence in which tokens were guessed ahead.",
                real(sum.drafts));
  page->Counter("inferd_spec_decode_num_draft_tokens_total",
                "vllm:spec_decode_num_draft_tokens_total",
                "Tokens guessed ahead.",
                real(sum.draft_tokens));
  page->Counter("inferd_spec_decode_num_accepted_tokens_total",
                "vllm:spec_decode_num_accepted_tokens_total",
                "Tokens guessed ahead that were right.",
                real(sum.accepted_tokens));
  page->Counter("inferd_num_preemptions_total",
                "vllm:num_preemptions_total",
                "Sequences that lost their pages and were recomputed.",
                real(sum.preemptions));
  page->Counter("inferd_kv_event_batches_total",
                nullptr,
                "Batches of KV events given to the publisher.",
                real(sum.kv_event_batches));
  page->Counter("inferd_kv_event_batches_dropped_total",
                nullptr,
                "Batches of KV events for which its queue had no room.",
                real(sum.kv_event_batches_dropped));
  page->Counter("inferd_steps_total", nullptr, "Steps run.", real(sum.steps));
  page->Counter("inferd_worker_restarts_total",
                nullptr,
                "Worker groups replaced after a failure.",
                real(sum.restarts));
  page->Gauge("inferd_replicas", nullptr, "Replicas of this server.", real(replicas.size()));
  page->Gauge("inferd_replicas_ready",
              nullptr,
              "Replicas that serve.",
              real(std::count_if(replicas.begin(), replicas.end(), [](const auto& r) {
                return r.phase == leader::Phase::kReady;
              })));
  page->Gauge("inferd_ready",
              nullptr,
              "1 while the server takes requests.",
              service.phase() == leader::Phase::kReady ? 1 : 0);
  page->Info("inferd_cache_config_info",
             "vllm:cache_config_info",
             "KV cache layout.",
             {{"block_size", std::to_string(sum.page_tokens)},
              {"num_gpu_blocks", std::to_string(sum.kv_pages_total)},
              {"cache_dtype", std::string(sum.kv_dtype)}});
  const int level = service.sleep_level();
  page->Gauges("inferd_sleep_state",
               "vllm:engine_sleep_state",
               "1 of the state the server is in: see POST /sleep.",
               {{{"sleep_state", "awake"}, level == 0 ? 1.0 : 0.0},
                {{"sleep_state", "weights_offloaded"}, level == 1 ? 1.0 : 0.0},
                {{"sleep_state", "discard_all"}, level == 2 ? 1.0 : 0.0}});
}

}  // namespace

Histogram::Histogram(std::span<const double> upper_bounds) : bounds_(upper_bounds) {}

void Histogram::Put(double value) {
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<std::size_t>(at)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

Histogram::Snapshot Histogram::Read() const {
  Snapshot snapshot;
  snapshot.upper_bounds.assign(bounds_.begin(), bounds_.end());
  for (std::size_t i = 0; i <= bounds_.size(); ++i) {
    snapshot.counts.push_back(counts_[i].load(std::memory_order_relaxed));
  }
  snapshot.sum = sum_.load(std::memory_order_relaxed);
  return snapshot;
}

Metrics::Metrics()
    : time_to_first_token(kTtft),
      inter_token_latency(kItl),
      time_per_output_token(kItl),
      e2e_latency(kE2e),
      prompt_tokens_per_request(kTokens),
      generation_tokens_per_request(kTokens) {}

void Metrics::CountFinish(leader::FinishReason reason) {
  finishes_[static_cast<std::size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
}

void Metrics::CountResponse(int status) {
  if (status >= 0 && static_cast<std::size_t>(status) < responses_.size()) {
    responses_[static_cast<std::size_t>(status)].fetch_add(1, std::memory_order_relaxed);
  }
}

std::string Metrics::Render(const leader::InferenceService& service,
                            std::string_view model_name) const {
  MetricsPage page(model_name, compat_.vllm);
  AddEngine(service, &page);
  AddOtherNames(compat_, Sum(service.stats()), &page);
  const auto finish = [this](leader::FinishReason reason) {
    return Load(finishes_[static_cast<std::size_t>(reason)]);
  };
  page.Counters("inferd_request_success_total",
                "vllm:request_success_total",
                "Choices ended, by reason.",
                {{{"finished_reason", "stop"}, finish(leader::FinishReason::kStop)},
                 {{"finished_reason", "length"}, finish(leader::FinishReason::kLength)},
                 {{"finished_reason", "abort"}, finish(leader::FinishReason::kCancelled)},
                 {{"finished_reason", "error"}, finish(leader::FinishReason::kError)}});
  page.Histo("inferd_time_to_first_token_seconds",
             {"vllm:time_to_first_token_seconds"},
             "Arrival to first token.",
             time_to_first_token);
  page.Histo("inferd_inter_token_latency_seconds",
             {"vllm:inter_token_latency_seconds"},
             "Time between tokens of a choice.",
             inter_token_latency);
  page.Histo("inferd_time_per_output_token_seconds",
             {"vllm:request_time_per_output_token_seconds", "vllm:time_per_output_token_seconds"},
             "Mean time per token after the first, per choice.",
             time_per_output_token);
  page.Histo("inferd_e2e_request_latency_seconds",
             {"vllm:e2e_request_latency_seconds"},
             "Arrival to end of the request.",
             e2e_latency);
  page.Histo("inferd_request_prompt_tokens",
             {"vllm:request_prompt_tokens"},
             "Prompt tokens per prompt.",
             prompt_tokens_per_request);
  page.Histo("inferd_request_generation_tokens",
             {"vllm:request_generation_tokens"},
             "Tokens per choice.",
             generation_tokens_per_request);
  std::vector<std::pair<MetricsPage::Label, double>> responses;
  for (std::size_t status = 100; status < responses_.size(); ++status) {
    if (const double count = Load(responses_[status]); count > 0) {
      responses.push_back({{"status", std::to_string(status)}, count});
    }
  }
  page.Counters("inferd_http_responses_total", nullptr, "Answers by status.", responses);
  page.Gauge("inferd_http_connections",
             nullptr,
             "Open connections.",
             static_cast<double>(connections_open.load()));
  page.Counter("inferd_http_connections_total",
               nullptr,
               "Connections accepted.",
               Load(connections_accepted));
  page.Counter("inferd_http_connections_refused_total",
               nullptr,
               "Connections refused at the limit.",
               Load(connections_refused));
  page.Gauge("inferd_http_generations",
             nullptr,
             "Requests that generate now.",
             static_cast<double>(generations_open.load()));
  page.Counter("inferd_http_clients_left_total",
               nullptr,
               "Clients that left while their request ran.",
               Load(clients_left));
  page.Counter("inferd_http_slow_clients_total",
               nullptr,
               "Clients cut because they did not read.",
               Load(slow_clients_cut));
  page.Counter("inferd_http_events_lost_total",
               nullptr,
               "Requests ended because an I/O thread fell behind.",
               Load(events_lost));
  AddBatches(*this, &page);
  page.Counter(
      "inferd_usage_records_dropped_total",
      nullptr,
      "Rows that the usage ledger lost: its queue was full or a file could not be written.",
      gate_ == nullptr ? 0 : static_cast<double>(gate_->dropped_records()));
  page.Counter("inferd_trace_spans_exported_total",
               nullptr,
               "Spans that the collector has taken.",
               spans_ == nullptr ? 0 : static_cast<double>(spans_->exported()));
  page.Counter("inferd_trace_spans_dropped_total",
               nullptr,
               "Spans that were lost: the queue was full or the collector did not take them.",
               spans_ == nullptr ? 0 : static_cast<double>(spans_->dropped()));
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, page.families());
  return text.str();
}

}  // namespace inferd::api
