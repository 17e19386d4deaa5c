// SPDX-License-Identifier: Apache-2.0
// Names under which other servers, and older ones, publish what is measured here too.
#include "api/core/metrics.h"
#include "api/core/metrics_page.h"
#include "base/error.h"

#include <string>
#include <vector>

namespace inferd::api {
namespace {

double Real(auto value) { return static_cast<double>(value); }

double HitRate(const leader::ReplicaStats& sum) {
  return sum.prefix_queries > 0 ? Real(sum.prefix_hits) / Real(sum.prefix_queries) : 0;
}

void AddVllmOld(const leader::ReplicaStats& sum, MetricsPage* page) {
  page->Gauge("vllm:gpu_cache_usage_perc", nullptr, "KV pages in use, 0 to 1.", KvUse(sum));
  page->Gauge("vllm:num_requests_swapped", nullptr, "Nothing is swapped.", 0);
  page->Counter("vllm:gpu_prefix_cache_queries_total",
                nullptr,
                "Prompt tokens looked up in the prefix cache.",
                Real(sum.prefix_queries));
  page->Counter("vllm:gpu_prefix_cache_hits_total",
                nullptr,
                "Prompt tokens found in the prefix cache.",
                Real(sum.prefix_hits));
  page->Gauge("vllm:gpu_prefix_cache_hit_rate",
              nullptr,
              "Share of prompt tokens found in the prefix cache since the start.",
              HitRate(sum));
}

void AddSglang(const leader::ReplicaStats& sum, MetricsPage* page) {
  page->Gauge(
      "sglang:num_running_reqs", nullptr, "Sequences in the running batch.", Real(sum.running));
  page->Gauge(
      "sglang:num_queue_reqs", nullptr, "Requests that wait for a place.", Real(sum.waiting));
  page->Gauge("sglang:token_usage", nullptr, "KV pages in use, 0 to 1.", KvUse(sum));
  page->Gauge("sglang:cache_hit_rate",
              nullptr,
              "Share of prompt tokens found in the prefix cache since the start.",
              HitRate(sum));
  page->Info("sglang:cache_config_info",
             nullptr,
             "KV cache layout.",
             {{"page_size", std::to_string(sum.page_tokens)},
              {"num_pages", std::to_string(sum.kv_pages_total)}});
}

void AddTrtllm(const leader::ReplicaStats& sum, MetricsPage* page) {
  page->Gauge(
      "trtllm_num_requests_running", nullptr, "Sequences in the running batch.", Real(sum.running));
  page->Gauge(
      "trtllm_num_requests_waiting", nullptr, "Requests that wait for a place.", Real(sum.waiting));
  page->Gauge("trtllm_kv_cache_utilization", nullptr, "KV pages in use, 0 to 1.", KvUse(sum));
  page->Gauge(
      "trtllm_kv_cache_tokens_per_block", nullptr, "Tokens of a KV page.", Real(sum.page_tokens));
  page->Gauge(
      "trtllm_kv_cache_max_blocks", nullptr, "KV pages of all replicas.", Real(sum.kv_pages_total));
}

}  // namespace

Result<MetricsCompat> ParseMetricsCompat(const std::vector<std::string>& names) {
  MetricsCompat compat{.vllm = false};
  for (const std::string& name : names) {
    if (name == "vllm") {
      compat.vllm = true;
    } else if (name == "vllm-old") {
      compat.vllm_old = true;
    } else if (name == "sglang") {
      compat.sglang = true;
    } else if (name == "trtllm") {
      compat.trtllm = true;
    } else if (name != "none" || names.size() > 1) {
      return InvalidArgument(
          "--metrics-compat has '{}'; it is a list of vllm, vllm-old, sglang and trtllm, or none "
          "alone",
          name);
    }
  }
  return compat;
}

void AddOtherNames(const MetricsCompat& compat,
                   const leader::ReplicaStats& sum,
                   MetricsPage* page) {
  if (compat.vllm_old) {
    AddVllmOld(sum, page);
  }
  if (compat.sglang) {
    AddSglang(sum, page);
  }
  if (compat.trtllm) {
    AddTrtllm(sum, page);
  }
}

}  // namespace inferd::api
