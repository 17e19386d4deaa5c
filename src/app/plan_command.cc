// SPDX-License-Identifier: Apache-2.0
// `inferd plan MODEL --tp 2 ...`: the shard plans and the memory ledger, without serving.
#include "app/commands.h"
#include "spec/memory_ledger.h"
#include "spec/parallel.h"

#include <fmt/core.h>

#include <cstdio>

namespace inferd::app {
namespace {

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

}  // namespace

Result<> PrintPlan(const Config& config) {
  INFERD_ASSIGN(const store::Model model, FindModel(config.model));
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
  ledger_options.kv_bytes_per_value = spec::KvBytesPerValue(options.kv_dtype, model.spec);
  ledger_options.max_batched_tokens = options.max_num_batched_tokens;
  ledger_options.max_num_seqs = options.max_num_seqs;
  INFERD_ASSIGN(const spec::MemoryLedger ledger,
                spec::MakeLedger(model.spec, shards, ledger_options));
  std::printf("\n%s", spec::Describe(ledger).c_str());
  return {};
}

}  // namespace inferd::app
