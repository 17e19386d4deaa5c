// SPDX-License-Identifier: Apache-2.0
// `inferd plan MODEL --tp 2 ...`: the shard plans and the memory ledger, without serving; with
// --gpus the layouts of a cluster. `inferd topo`: the links of this host.
#include "app/cluster_plan.h"
#include "app/commands.h"
#include "base/error.h"
#include "base/file.h"
#include "plan/host_topology.h"
#include "plan/layout_report.h"
#include "plan/topology.h"
#include "spec/memory_ledger.h"
#include "spec/parallel.h"

#include <fmt/core.h>

#include <cstdio>

namespace inferd::app {
namespace {

constexpr std::uint64_t kMaxTopologyBytes = 4U << 20U;

std::string Describe(const spec::ShardPlan& shard) {
  const auto range = [](const spec::Range& r) {
    return r.size() == 0 ? std::string("-") : fmt::format("{}..{}", r.begin, r.end - 1);
  };
  return fmt::format(
      "rank {:>3}  stage {} group {} tp {}  layers {:<9} heads {:<9} kv {:<7} ffn {:<13} experts "
      "{:<7} vocab {}",
      shard.rank,
      shard.stage,
      shard.group,
      shard.tp_rank,
      range(shard.layers),
      range(shard.q_heads),
      range(shard.kv_heads),
      range(shard.ffn),
      range(shard.experts),
      range(shard.vocab));
}

Result<std::string> ReadInput() {
  std::string text;
  char buffer[4096];
  while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, stdin)) {
    text.append(buffer, got);
    if (text.size() > kMaxTopologyBytes) {
      return InvalidArgument("standard input has more than {} bytes", kMaxTopologyBytes);
    }
  }
  return text;
}

/// The cut on this host.
Result<> PrintCut(const Config& config) {
  INFERD_ASSIGN(const store::Model model, FindModel(config.model, config.worker.device));
  INFERD_ASSIGN(const leader::LeaderOptions options, MakeLeaderOptions(config, model));
  INFERD_ASSIGN(const auto shards, spec::PlanShards(options.model, options.parallel, options.cut));
  std::printf(
      "%s: %lld layers, %lld heads, %lld KV heads, %.2f billion parameters, %.2f GiB of weights\n",
      config.model.model.c_str(),
      static_cast<long long>(model.spec.num_layers),
      static_cast<long long>(model.spec.num_heads),
      static_cast<long long>(model.spec.num_kv_heads),
      static_cast<double>(spec::CountParameters(model.spec)) * 1e-9,
      static_cast<double>(options.weight_bytes) / (1LL << 30));
  for (const spec::ShardPlan& shard : shards) {
    std::printf("%s\n", Describe(shard).c_str());
  }
  spec::LedgerOptions ledger_options;
  ledger_options.bytes_per_weight = spec::BytesPerWeight(model.spec, options.weight_bytes);
  ledger_options.weight_bytes = options.shard_weight_bytes;
  ledger_options.kv_bytes_per_value = spec::KvBytesPerValue(options.kv_dtype, model.spec);
  ledger_options.max_batched_tokens = options.max_num_batched_tokens;
  ledger_options.max_num_seqs = options.max_num_seqs;
  INFERD_ASSIGN(const spec::MemoryLedger ledger,
                spec::MakeLedger(model.spec, shards, ledger_options));
  std::printf("\n%s", spec::Describe(ledger).c_str());
  return {};
}

Result<> PrintCluster(const CommandLine& line) {
  INFERD_ASSIGN(const plan::LayoutRequest request, MakeLayoutRequest(line));
  INFERD_ASSIGN(const plan::LayoutPlan layouts, plan::PlanLayouts(request));
  const std::string text = line.plan.json ? plan::LayoutsJson(request, layouts)
                                          : plan::DescribeLayouts(request, layouts);
  std::fputs(text.c_str(), stdout);
  return {};
}

}  // namespace

Result<> PrintPlan(const CommandLine& line) {
  if (!line.plan.generate_trace.empty()) {
    return GenerateTrace(line);
  }
  if (line.plan.gpus.empty()) {
    if (!line.plan.simulate.empty()) {
      return InvalidArgument("--simulate needs --gpus: the devices to simulate, as 8xH100");
    }
    return PrintCut(line.config);
  }
  return line.plan.simulate.empty() ? PrintCluster(line) : SimulateTrace(line);
}

Result<> PrintTopology(const CommandLine& line) {
  plan::Topology topology;
  if (line.plan.topology.empty()) {
    INFERD_ASSIGN(topology, plan::HostTopology());
  } else {
    const bool is_input = line.plan.topology == "-";
    const std::string what = is_input ? "standard input" : line.plan.topology;
    INFERD_ASSIGN(const std::string text,
                  is_input ? ReadInput() : base::ReadFile(what, kMaxTopologyBytes));
    INFERD_ASSIGN(topology, plan::ParseNvidiaTopology(what, text));
  }
  const std::string text =
      line.plan.json ? plan::TopologyJson(topology) : plan::DescribeTopology(topology);
  std::fputs(text.c_str(), stdout);
  return {};
}

}  // namespace inferd::app
