// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate_report.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>

namespace inferd::plan {
namespace {

using Json = nlohmann::ordered_json;

double Ms(double seconds) { return seconds * 1e3; }

double Rounded(double value) { return std::round(value * 1e4) / 1e4; }

Json PercentilesJson(const Percentiles& values) {
  return {{"mean", Rounded(Ms(values.mean))},
          {"p50", Rounded(Ms(values.p50))},
          {"p90", Rounded(Ms(values.p90))},
          {"p99", Rounded(Ms(values.p99))},
          {"max", Rounded(Ms(values.max))}};
}

Json ResultJson(const SimulateResult& result) {
  return {{"requests", result.requests},
          {"completed", result.completed},
          {"refused", result.refused},
          {"retried", result.retried},
          {"requests_per_s", Rounded(result.rate)},
          {"output_tokens_per_s", Rounded(result.tokens_per_s)},
          {"duration_s", Rounded(result.duration_s)},
          {"ttft_ms", PercentilesJson(result.ttft_s)},
          {"tpot_ms", PercentilesJson(result.tpot_s)},
          {"latency_ms", PercentilesJson(result.latency_s)},
          {"attained", Rounded(result.attained)},
          {"replica_hours", Rounded(result.replica_hours)},
          {"preemptions", result.preemptions},
          {"steps", result.steps},
          {"mean_rows_per_step", Rounded(result.mean_rows)},
          {"prefix_hit_share", Rounded(result.prefix_hit)},
          {"wall_s", Rounded(result.wall_s)}};
}

}  // namespace

std::string DescribeSimulation(const std::vector<SimulatedLayout>& layouts, double share) {
  std::string text = fmt::format("{:<18} {:>8} {:>9} {:>19} {:>19} {:>9} {:>9} {:>9} {:>9}\n",
                                 "layout",
                                 "replicas",
                                 "req/s",
                                 "TTFT p50/p99 ms",
                                 "TPOT p50/p99 ms",
                                 "tokens/s",
                                 "attained",
                                 "refused",
                                 "rep-hours");
  for (const SimulatedLayout& layout : layouts) {
    const SimulateResult& result = layout.result;
    text += fmt::format(
        "{:<18} {:>8} {:>9.2f} {:>19} {:>19} {:>9.0f} {:>7.1f} % {:>9} {:>9.2f}\n",
        layout.name,
        layout.spares > 0 ? fmt::format("{}+{}", layout.replicas - layout.spares, layout.spares)
                          : std::to_string(layout.replicas),
        result.rate,
        fmt::format("{:.0f} / {:.0f}", Ms(result.ttft_s.p50), Ms(result.ttft_s.p99)),
        fmt::format("{:.2f} / {:.2f}", Ms(result.tpot_s.p50), Ms(result.tpot_s.p99)),
        result.tokens_per_s,
        100 * result.attained,
        result.refused,
        result.replica_hours);
  }
  for (const SimulatedLayout& layout : layouts) {
    const SimulateResult& result = layout.result;
    text += fmt::format(
        "{}: {} requests in {:.0f} s of virtual time; {:.1f} rows a step, {} steps, {} "
        "preemptions, "
        "{} retried; simulated in {:.1f} s\n",
        layout.name,
        result.requests,
        result.duration_s,
        result.mean_rows,
        result.steps,
        result.preemptions,
        result.retried,
        result.wall_s);
    if (layout.knee) {
      text += fmt::format(
          "  knee: {:.2f} requests/s with {:.1f} % within the targets (TTFT p99 {:.0f} ms, "
          "TPOT p99 {:.2f} ms); tried",
          layout.knee->rate,
          100 * share,
          Ms(layout.knee->at.ttft_s.p99),
          Ms(layout.knee->at.tpot_s.p99));
      for (const auto& [rate, attained] : layout.knee->tried) {
        text += fmt::format(" {:.1f}/s {:.0f} %", rate, 100 * attained);
      }
      text += "\n";
    }
  }
  return text;
}

std::string SimulationJson(const std::vector<SimulatedLayout>& layouts, double share) {
  Json json;
  json["wanted_share"] = share;
  json["layouts"] = Json::array();
  for (const SimulatedLayout& layout : layouts) {
    Json one = {{"name", layout.name}, {"replicas", layout.replicas}, {"spares", layout.spares}};
    one["result"] = ResultJson(layout.result);
    if (layout.knee) {
      one["knee"] = {{"requests_per_s", Rounded(layout.knee->rate)},
                     {"at", ResultJson(layout.knee->at)}};
      for (const auto& [rate, attained] : layout.knee->tried) {
        one["knee"]["tried"].push_back({Rounded(rate), Rounded(attained)});
      }
    }
    json["layouts"].push_back(std::move(one));
  }
  return json.dump(2) + "\n";
}

}  // namespace inferd::plan
