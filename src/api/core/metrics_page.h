// SPDX-License-Identifier: Apache-2.0
// The page that /metrics answers with, as prometheus-cpp's families; included by who fills it only.
#pragma once

#include "api/core/metrics.h"

#include <prometheus/metric_family.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace inferd::api {

/// KV pages in use, 0 to 1.
inline double KvUse(const leader::ReplicaStats& stats) {
  return stats.kv_pages_total > 0
             ? static_cast<double>(stats.kv_pages_used) / static_cast<double>(stats.kv_pages_total)
             : 0;
}

/// Adds families under `inferd_x` and, with `vllm_names`, where dashboards know it, `vllm:y`. One
/// thread.
class MetricsPage {
 public:
  using Families = std::vector<prometheus::MetricFamily>;
  using Label = std::pair<std::string, std::string>;

  MetricsPage(std::string_view model, bool vllm_names) : model_(model), vllm_names_(vllm_names) {}

  void Gauge(const char* name, const char* alias, const char* help, double value) {
    Both(name, alias, help, prometheus::MetricType::Gauge, {Number(value, true, {})});
  }
  void Gauges(const char* name,
              const char* alias,
              const char* help,
              const std::vector<std::pair<Label, double>>& values) {
    std::vector<prometheus::ClientMetric> metrics;
    for (const auto& [label, value] : values) {
      metrics.push_back(Number(value, true, {label}));
    }
    Both(name, alias, help, prometheus::MetricType::Gauge, std::move(metrics));
  }
  void Counter(const char* name, const char* alias, const char* help, double value) {
    Both(name, alias, help, prometheus::MetricType::Counter, {Number(value, false, {})});
  }
  void Counters(const char* name,
                const char* alias,
                const char* help,
                const std::vector<std::pair<Label, double>>& values) {
    std::vector<prometheus::ClientMetric> metrics;
    for (const auto& [label, value] : values) {
      metrics.push_back(Number(value, false, {label}));
    }
    Both(name, alias, help, prometheus::MetricType::Counter, std::move(metrics));
  }
  void Histo(const char* name,
             const std::vector<const char*>& aliases,
             const char* help,
             const Histogram& histogram) {
    const Histogram::Snapshot snapshot = histogram.Read();
    prometheus::ClientMetric metric = Labelled({});
    metric.histogram.sample_sum = snapshot.sum;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < snapshot.counts.size(); ++i) {
      total += snapshot.counts[i];
      const double bound = i < snapshot.upper_bounds.size()
                               ? snapshot.upper_bounds[i]
                               : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({total, bound});
    }
    metric.histogram.sample_count = total;
    Both(name, nullptr, help, prometheus::MetricType::Histogram, {metric});
    for (const char* alias : aliases) {
      Both(nullptr, alias, help, prometheus::MetricType::Histogram, {metric});
    }
  }
  void Info(const char* name,
            const char* alias,
            const char* help,
            const std::vector<Label>& labels) {
    prometheus::ClientMetric metric = Labelled(labels);
    metric.gauge.value = 1;
    Both(name, alias, help, prometheus::MetricType::Gauge, {metric});
  }

  const Families& families() const { return families_; }

 private:
  prometheus::ClientMetric Labelled(const std::vector<Label>& labels) const {
    prometheus::ClientMetric metric;
    metric.label.push_back({"model_name", model_});
    for (const auto& [name, value] : labels) {
      metric.label.push_back({name, value});
    }
    return metric;
  }
  prometheus::ClientMetric Number(double value,
                                  bool gauge,
                                  const std::vector<Label>& labels) const {
    prometheus::ClientMetric metric = Labelled(labels);
    (gauge ? metric.gauge.value : metric.counter.value) = value;
    return metric;
  }
  void Both(const char* name,
            const char* alias,
            const char* help,
            prometheus::MetricType type,
            std::vector<prometheus::ClientMetric> metrics) {
    for (const char* shown : {name, vllm_names_ ? alias : nullptr}) {
      if (shown != nullptr) {
        families_.push_back({shown, help, type, metrics});
      }
    }
  }

  std::string model_;
  bool vllm_names_;
  Families families_;
};

/// What `compat` asks for beside the names that MetricsPage itself gives; `sum`: of all replicas.
void AddOtherNames(const MetricsCompat& compat, const leader::ReplicaStats& sum, MetricsPage* page);

}  // namespace inferd::api
