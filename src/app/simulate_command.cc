// SPDX-License-Identifier: Apache-2.0
// `inferd plan --simulate TRACE` and `--generate-trace FILE`: traces through the real engine in
// virtual time, for the best layouts of a cluster.
#include "app/cluster_plan.h"
#include "app/commands.h"
#include "base/error.h"
#include "plan/layouts.h"
#include "plan/simulate.h"
#include "plan/simulate_report.h"
#include "plan/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace inferd::app {
namespace {

constexpr double kShare = 0.99;
constexpr std::int64_t kKneeRequests = 5000;
constexpr double kEngineStartSeconds = 20;  // process, graphs and warm-up beside the weights

Result<double> Or(
    const char* flag, const std::string& text, double fallback, double min, double max) {
  if (text.empty()) {
    return fallback;
  }
  return ParseNumber(flag, text, min, max);
}

/// Reading the weights of the heaviest rank into its device, and starting.
double ColdStartSeconds(const plan::Layout& layout) {
  double bytes = 0;
  for (const plan::RankMemory& rank : layout.ranks) {
    bytes = std::max(bytes, static_cast<double>(rank.ledger.weight_bytes));
  }
  const double rate = layout.model.device.load_bytes_per_s;
  return kEngineStartSeconds + (rate > 0 ? bytes / rate : 0);
}

Result<> FillAutoscale(const std::string& text, int replicas, plan::AutoscalePolicy* policy) {
  if (text.empty()) {
    return {};
  }
  INFERD_ASSIGN(const double min, ParseNumber("--autoscale", text, 1, replicas));
  policy->min_replicas = static_cast<int>(min);
  return {};
}

Result<plan::SimulateOptions> MakeOptions(const PlanFlags& flags,
                                          const plan::LayoutRequest& request,
                                          const plan::Layout& layout) {
  plan::SimulateOptions options;
  options.replica = layout.model;
  options.spares = layout.reserve;
  options.replicas = layout.replicas + layout.reserve;
  const auto ranks = static_cast<std::size_t>(layout.parallel.ranks_per_replica());
  for (std::size_t i = 0; i < layout.places.size(); i += ranks) {
    options.node_of_replica.push_back(layout.places[i].node);
  }
  options.targets = request.targets;
  INFERD_ASSIGN(options.cold_start_s,
                Or("--cold-start", flags.cold_start, ColdStartSeconds(layout), 0, 1e6));
  INFERD_ASSIGN(options.lose_node_at_s, Or("--lose-node-at", flags.lose_node_at, -1, 0, 1e9));
  options.prewarmed = flags.prewarmed;
  INFERD_TRY(FillAutoscale(flags.autoscale, options.replicas, &options.autoscale));
  if (options.autoscale.min_replicas > 0) {
    options.spares = 0;  // what is not needed is not started
  }
  return options;
}

std::string Name(const spec::ParallelSpec& parallel) {
  return fmt::format("tp {} pp {} ep {}", parallel.tp, parallel.pp, parallel.ep);
}

}  // namespace

Result<> GenerateTrace(const CommandLine& line) {
  const PlanFlags& flags = line.plan;
  plan::TraceRecipe recipe;
  INFERD_ASSIGN(const double requests, Or("--requests", flags.requests, 1000, 1, 2e7));
  recipe.requests = static_cast<std::int64_t>(requests);
  INFERD_ASSIGN(recipe.rate, Or("--rate", flags.rate, 1, 1e-6, 1e6));
  INFERD_ASSIGN(recipe.input, Or("--input", flags.input, 1000, 1, 1e6));
  INFERD_ASSIGN(recipe.output, Or("--output", flags.output, 300, 1, 1e6));
  INFERD_ASSIGN(recipe.spread, Or("--spread", flags.spread, 0.5, 0, 5));
  INFERD_ASSIGN(const double prefixes, Or("--prefixes", flags.prefixes, 0, 0, 1e6));
  recipe.prefixes = static_cast<int>(prefixes);
  INFERD_ASSIGN(const double seed, Or("--trace-seed", flags.trace_seed, 1, 0, 1e9));
  recipe.seed = static_cast<std::uint64_t>(seed);
  INFERD_TRY(plan::WriteTrace(plan::MakeTrace(recipe), flags.generate_trace));
  std::printf(
      "%s: %lld requests\n", flags.generate_trace.c_str(), static_cast<long long>(recipe.requests));
  return {};
}

Result<> SimulateTrace(const CommandLine& line) {
  INFERD_ASSIGN(const plan::LayoutRequest request, MakeLayoutRequest(line));
  INFERD_ASSIGN(const std::vector<plan::TraceRequest> trace, plan::ReadTrace(line.plan.simulate));
  INFERD_ASSIGN(const double most, Or("--layouts", line.plan.layouts, 1, 1, 64));
  INFERD_ASSIGN(const plan::LayoutPlan layouts, plan::PlanLayouts(request));
  std::vector<plan::SimulatedLayout> simulated;
  for (const plan::Layout& layout : layouts.layouts) {
    if (simulated.size() >= static_cast<std::size_t>(most)) {
      break;
    }
    INFERD_ASSIGN(const plan::SimulateOptions options, MakeOptions(line.plan, request, layout));
    plan::SimulatedLayout one;
    one.name = Name(layout.parallel);
    one.replicas = options.replicas;
    one.spares = options.spares;
    INFERD_ASSIGN(one.result, plan::Simulate(options, trace));
    if (line.plan.find_knee) {
      INFERD_ASSIGN(one.knee, plan::FindKnee(options, trace, kShare, kKneeRequests));
    }
    simulated.push_back(std::move(one));
  }
  const std::string text = line.plan.json ? plan::SimulationJson(simulated, kShare)
                                          : plan::DescribeSimulation(simulated, kShare);
  std::fputs(text.c_str(), stdout);
  return {};
}

}  // namespace inferd::app
