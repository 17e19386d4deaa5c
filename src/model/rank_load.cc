// SPDX-License-Identifier: Apache-2.0
// From the files of a model to a rank that may join.
#include "base/error.h"
#include "model/kv_cache.h"
#include "model/rank_impl.h"
#include "model/weights.h"

#include <memory>
#include <utility>

namespace inferd::model {
namespace {

// A plan made for another model, or by a bug of the leader, must not index out of bounds.
Result<> CheckShard(const spec::ModelSpec& model, const spec::ShardPlan& plan) {
  const auto inside = [](const spec::Range& range, std::int64_t limit) {
    return range.begin >= 0 && range.begin <= range.end && range.end <= limit;
  };
  const spec::MoeSpec& moe = model.moe;
  const bool fits = inside(plan.layers, model.num_layers) && plan.layers.size() > 0 &&
                    inside(plan.vocab, model.vocab_size) && inside(plan.q_heads, model.num_heads) &&
                    plan.q_heads.size() > 0 && inside(plan.kv_heads, model.num_kv_heads) &&
                    plan.kv_heads.size() > 0 && inside(plan.ffn, model.intermediate_size) &&
                    inside(plan.experts, moe.num_experts) &&
                    inside(plan.expert_ffn, moe.expert_intermediate_size) &&
                    inside(plan.shared_ffn, moe.shared_intermediate_size) && plan.tp >= 1 &&
                    plan.pp >= 1 && plan.ep >= 1 && plan.has_embedding == (plan.stage == 0) &&
                    plan.has_head == (plan.stage == plan.pp - 1);
  if (!fits) {
    return InvalidArgument(
        "the shard plan of rank {} does not fit the model {}", plan.rank, model.name);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Rank>> Rank::Load(const spec::LoadRequest& request,
                                         const LoadProgress& progress) {
  // Bytes of weights are not known yet, but the leader must hear that there is progress.
  const auto alive = [&] {
    if (progress) {
      progress(0, 1);
    }
    return true;
  };
  INFERD_ASSIGN(std::unique_ptr<ops::Device> device,
                ops::MakeDevice(request.device, request.threads, request.cpus, request.bf16_dot));
  INFERD_ASSIGN(store::PartialModel source,
                store::PartialModel::Open(
                    request.model_path, request.quantization, alive, device->TakesScales()));
  store::Model& model = source.model();
  INFERD_TRY(CheckShard(model.spec, request.shard));
  if (!source.whole()) {
    INFERD_ASSIGN(auto ranges, RangesOfShard(model, request.shard));
    const auto scales = RangesOfKvScales(model, request.shard);
    ranges.insert(ranges.end(), scales.begin(), scales.end());
    INFERD_TRY(source.Provide(ranges));
  }
  LoadWeightsOptions load_options;
  load_options.threads = request.threads;
  load_options.progress = progress;
  INFERD_ASSIGN(ShardWeights weights, LoadWeights(model, request.shard, *device, load_options));
  ShardOptions options;
  options.max_batched_tokens = request.max_batched_tokens;
  options.max_num_seqs = request.max_num_seqs;
  options.max_model_len =
      request.max_model_len > 0 ? request.max_model_len : model.spec.max_position;
  options.kv_pages = request.kv_pages;
  options.kv_type = KvTypeOf(request.kv_dtype, model.spec);
  if (options.kv_type == ops::KvType::kFp8) {
    INFERD_ASSIGN(options.kv_scales, ReadKvScales(model, request.shard));
  }
  options.cuda_graph_sizes = request.cuda_graph_sizes;
  options.batch_invariant = request.batch_invariant;
  INFERD_ASSIGN(std::unique_ptr<Shard> shard,
                Shard::Make(model.spec, request.shard, std::move(weights), *device, options));
  RowLimits limits;
  limits.group = request.shard.group;
  limits.max_num_seqs = request.max_num_seqs;
  limits.max_batched_tokens = request.max_batched_tokens;
  limits.max_model_len = options.max_model_len;
  limits.kv_pages = request.kv_pages;
  limits.page_tokens = device->PageTokens();
  auto rank = std::make_unique<RankImpl>(
      request, std::move(model), std::move(device), std::move(shard), limits);
  INFERD_TRY(rank->Reserve());
  return std::unique_ptr<Rank>(std::move(rank));
}

}  // namespace inferd::model
