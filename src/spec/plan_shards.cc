// SPDX-License-Identifier: Apache-2.0
// PlanShards: the one place that decides which slice is whose.
#include "base/error.h"
#include "spec/parallel.h"
#include "spec/stage_balance.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

namespace inferd::spec {
namespace {

constexpr int kMaxParallel = 4096;
// Kernels like runs of whole vectors; cuts fall on multiples of this where the size allows it.
constexpr std::int64_t kPreferredUnit = 32;

/// Cuts [0, total) into `parts` runs of whole units (the last unit may be short), sizes differing
/// by at most one unit. Null if there are fewer units than parts.
std::optional<std::vector<Range>> CutEvenly(std::int64_t total, std::int64_t unit, int parts) {
  const std::int64_t units = (total + unit - 1) / unit;
  if (units < parts) {
    return std::nullopt;
  }
  std::vector<Range> ranges;
  std::int64_t begin = 0;
  for (int i = 0; i < parts; ++i) {
    const std::int64_t size = units / parts + (i < units % parts ? 1 : 0);
    const std::int64_t end = std::min(begin + size * unit, total);
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

Error CannotCut(int parts, std::string_view what, std::int64_t total, std::int64_t unit) {
  const std::int64_t most = (total + unit - 1) / unit;
  return InvalidArgument(
      "--tp {} is more than the {} parts that {} ({} in units of {}) can be cut into; use 1 to {}",
      parts,
      most,
      what,
      total,
      unit,
      most);
}

/// Columns of an FFN: borders on blocks of the down projection.
Result<std::vector<Range>> CutColumns(std::string_view what,
                                      std::int64_t total,
                                      std::int64_t block,
                                      int parts) {
  const std::int64_t preferred = std::lcm(block, kPreferredUnit);
  auto ranges = CutEvenly(total, preferred, parts);
  // The preferred unit only where it does not make the slices more uneven than its own size
  // warrants.
  if (!ranges || total / parts < 4 * preferred) {
    ranges = CutEvenly(total, block, parts);
  }
  if (!ranges) {
    return CannotCut(parts, what, total, block);
  }
  return *std::move(ranges);
}

/// Where query heads would ideally be cut: whole GQA groups where there are enough, else every
/// group into equally many ranks, else evenly.
std::vector<std::int64_t> IdealHeadBorders(const ModelSpec& model, int tp) {
  const std::int64_t group = model.num_heads / model.num_kv_heads;
  std::vector<std::int64_t> borders = {0};
  if (tp <= model.num_kv_heads) {
    for (int i = 0; i < tp; ++i) {
      const std::int64_t groups = model.num_kv_heads / tp + (i < model.num_kv_heads % tp ? 1 : 0);
      borders.push_back(borders.back() + groups * group);
    }
    return borders;
  }
  const bool inside_groups = tp % model.num_kv_heads == 0;
  const std::int64_t ranks = inside_groups ? tp / model.num_kv_heads : tp;  // that share `heads`
  const std::int64_t heads = inside_groups ? group : model.num_heads;
  for (int i = 0; i < tp; ++i) {
    borders.push_back(borders.back() + heads / ranks + (i % ranks < heads % ranks ? 1 : 0));
  }
  return borders;
}

/// Head borders that are block borders of the O projection too.
Result<std::vector<Range>> CutHeads(const ModelSpec& model, std::int64_t block, int tp) {
  const std::int64_t dim = model.value_dim();
  const std::int64_t unit = std::lcm(dim, block) / dim;
  const std::int64_t units = (model.num_heads + unit - 1) / unit;
  if (tp > units) {
    if (unit == 1) {
      return InvalidArgument(
          "--tp {} is more than the {} attention heads; use 1 to {}", tp, model.num_heads, units);
    }
    return InvalidArgument(
        "--tp {} is more than the {} head groups this model can be cut into ({} heads of {}, {} to "
        "a block of the "
        "output projection); use 1 to {}",
        tp,
        units,
        model.num_heads,
        dim,
        unit,
        units);
  }
  const std::vector<std::int64_t> ideal = IdealHeadBorders(model, tp);
  std::vector<Range> ranges;
  std::int64_t begin = 0;  // in units
  for (int i = 0; i < tp; ++i) {
    const std::int64_t left = tp - 1 - i;  // ranks that still need a unit each
    const std::int64_t wanted = (ideal[static_cast<std::size_t>(i) + 1] + unit / 2) / unit;
    const std::int64_t end = left == 0 ? units : std::clamp(wanted, begin + 1, units - left);
    ranges.push_back({begin * unit, std::min(end * unit, model.num_heads)});
    begin = end;
  }
  return ranges;
}

/// The cuts of one tp group, by tp_rank (and by group where it says so).
struct Cuts {
  std::vector<Range> vocab;
  std::vector<Range> heads;
  std::vector<Range> ffn;
  std::vector<Range> experts;     // by group, or by group * tp + tp_rank with expert_parallel_in_tp
  std::vector<Range> expert_ffn;  // by tp_rank
  std::vector<Range> shared_ffn;
};

Result<> CutExperts(const ModelSpec& model,
                    const ParallelSpec& parallel,
                    const CutGranularity& cut,
                    Cuts* cuts) {
  const MoeSpec& moe = model.moe;
  if (moe.num_experts == 0) {
    if (parallel.ep > 1 || parallel.expert_parallel_in_tp) {
      return InvalidArgument(
          "--ep {}{}: the model has no experts; use --ep 1",
          parallel.ep,
          parallel.expert_parallel_in_tp ? " with --enable-expert-parallel" : "");
    }
    return {};
  }
  const int holders = parallel.expert_parallel_in_tp ? parallel.ep * parallel.tp : parallel.ep;
  auto experts = CutEvenly(moe.num_experts, 1, holders);
  if (!experts) {
    return InvalidArgument(
        "{} ranks cannot hold whole ones of {} experts each; use --ep{} of at most {}",
        holders,
        moe.num_experts,
        parallel.expert_parallel_in_tp ? " times --tp" : "",
        moe.num_experts);
  }
  cuts->experts = *std::move(experts);
  if (parallel.expert_parallel_in_tp) {
    cuts->expert_ffn.assign(static_cast<std::size_t>(parallel.tp),
                            {0, moe.expert_intermediate_size});
  } else {
    INFERD_ASSIGN(
        cuts->expert_ffn,
        CutColumns("an expert", moe.expert_intermediate_size, cut.expert_ffn, parallel.tp));
  }
  if (moe.shared_intermediate_size > 0) {
    INFERD_ASSIGN(
        cuts->shared_ffn,
        CutColumns("the shared expert", moe.shared_intermediate_size, cut.shared_ffn, parallel.tp));
  }
  return {};
}

Result<Cuts> MakeCuts(const ModelSpec& model,
                      const ParallelSpec& parallel,
                      const CutGranularity& cut) {
  Cuts cuts;
  INFERD_ASSIGN(cuts.heads, CutHeads(model, cut.attention_out, parallel.tp));
  INFERD_ASSIGN(cuts.vocab, CutColumns("the vocabulary", model.vocab_size, 1, parallel.tp));
  if (std::ranges::any_of(model.layers, [](const LayerSpec& layer) { return !layer.moe; })) {
    INFERD_ASSIGN(cuts.ffn, CutColumns("the FFN", model.intermediate_size, cut.ffn, parallel.tp));
  }
  INFERD_TRY(CutExperts(model, parallel, cut, &cuts));
  return cuts;
}

Result<> CheckSizes(const ModelSpec& model,
                    const ParallelSpec& parallel,
                    const CutGranularity& cut) {
  for (const auto& [flag, value] : {std::pair{"--tp", parallel.tp},
                                    std::pair{"--pp", parallel.pp},
                                    std::pair{"--ep", parallel.ep},
                                    std::pair{"--dp", parallel.dp}}) {
    if (value < 1 || value > kMaxParallel) {
      return InvalidArgument("{} is {}; 1 to {} is possible", flag, value, kMaxParallel);
    }
  }
  if (parallel.pp > model.num_layers) {
    return InvalidArgument("--pp {} is more than the {} layers; use 1 to {}",
                           parallel.pp,
                           model.num_layers,
                           model.num_layers);
  }
  if (std::min({cut.attention_out, cut.ffn, cut.expert_ffn, cut.shared_ffn}) < 1) {
    return InvalidArgument("a cut granularity below 1");
  }
  const std::int64_t ranks = std::int64_t{parallel.tp} * parallel.pp * parallel.ep;
  if (ranks > kMaxParallel) {
    return InvalidArgument("--tp {} x --pp {} x --ep {} are {} ranks; at most {} are possible",
                           parallel.tp,
                           parallel.pp,
                           parallel.ep,
                           ranks,
                           kMaxParallel);
  }
  return {};
}

Range At(const std::vector<Range>& ranges, int index) {
  return ranges.empty() ? Range{} : ranges[static_cast<std::size_t>(index)];
}

}  // namespace

Result<std::vector<ShardPlan>> PlanShards(const ModelSpec& model,
                                          const ParallelSpec& parallel,
                                          const CutGranularity& cut) {
  INFERD_TRY(Validate(model));
  INFERD_TRY(CheckSizes(model, parallel, cut));
  INFERD_ASSIGN(const Cuts cuts, MakeCuts(model, parallel, cut));
  INFERD_ASSIGN(const std::vector<Range> stages,
                CutStages(model, parallel.pp, parallel.pp_partition));
  const std::int64_t group_heads = model.num_heads / model.num_kv_heads;
  std::vector<ShardPlan> shards;
  for (int stage = 0; stage < parallel.pp; ++stage) {
    for (int group = 0; group < parallel.ep; ++group) {
      for (int tp_rank = 0; tp_rank < parallel.tp; ++tp_rank) {
        ShardPlan shard;
        shard.rank = static_cast<int>(shards.size());
        shard.tp = parallel.tp;
        shard.pp = parallel.pp;
        shard.ep = parallel.ep;
        shard.tp_rank = tp_rank;
        shard.stage = stage;
        shard.group = group;
        shard.layers = At(stages, stage);
        shard.has_embedding = stage == 0;
        shard.has_head = stage == parallel.pp - 1;
        shard.vocab = At(cuts.vocab, tp_rank);
        shard.q_heads = At(cuts.heads, tp_rank);
        shard.kv_heads = {shard.q_heads.begin / group_heads,
                          (shard.q_heads.end - 1) / group_heads + 1};
        shard.ffn = At(cuts.ffn, tp_rank);
        shard.experts = At(cuts.experts,
                           parallel.expert_parallel_in_tp ? group * parallel.tp + tp_rank : group);
        shard.expert_ffn = At(cuts.expert_ffn, tp_rank);
        shard.shared_ffn = At(cuts.shared_ffn, tp_rank);
        shards.push_back(shard);
      }
    }
  }
  return shards;
}

std::vector<std::int32_t> KvHeadOfQuery(const ModelSpec& model, const ShardPlan& shard) {
  const std::int64_t group = model.num_heads / model.num_kv_heads;
  std::vector<std::int32_t> heads;
  for (std::int64_t head = shard.q_heads.begin; head < shard.q_heads.end; ++head) {
    heads.push_back(static_cast<std::int32_t>(head / group - shard.kv_heads.begin));
  }
  return heads;
}

Range HiddenRows(const ModelSpec& model, const ShardPlan& shard) {
  auto ranges = CutEvenly(model.hidden_size, kPreferredUnit, shard.tp);
  if (!ranges || model.hidden_size / shard.tp < 4 * kPreferredUnit) {
    ranges = CutEvenly(model.hidden_size, 1, shard.tp);
  }
  return ranges ? At(*ranges, shard.tp_rank) : Range{};  // fewer values than ranks: some have none
}

}  // namespace inferd::spec
