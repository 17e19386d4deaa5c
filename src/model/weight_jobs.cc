// SPDX-License-Identifier: Apache-2.0
#include "model/weight_jobs.h"

#include "base/error.h"

#include <utility>

namespace inferd::model {
namespace {

using spec::Range;
using store::Slot;
using store::WeightRef;

class Lister {
 public:
  Lister(const store::Model& source, const spec::ShardPlan& shard, ShardWeights* weights)
      : source_(source),
        spec_(source.spec),
        shard_(shard),
        weights_(*weights),
        hidden_rows_(spec::HiddenRows(source.spec, shard)) {}

  Result<WeightJobs> Run() {
    // Reserved before any job keeps an address inside.
    weights_.layers.resize(static_cast<std::size_t>(shard_.layers.size()));
    INFERD_TRY(AddWholeModel());
    for (std::int64_t i = 0; i < shard_.layers.size(); ++i) {
      const std::int64_t layer = shard_.layers.begin + i;
      LayerWeights& target = weights_.layers[static_cast<std::size_t>(i)];
      INFERD_TRY(spec_.latent.used() ? AddLatentAttention(layer, target)
                                     : AddAttention(layer, target));
      if (spec_.layers[static_cast<std::size_t>(layer)].moe) {
        INFERD_TRY(AddMoe(layer, target));
      } else {
        INFERD_TRY(AddFfn(layer, target));
      }
    }
    return std::move(jobs_);
  }

 private:
  Result<WeightRef> Find(Slot slot,
                         std::int64_t layer,
                         std::int64_t expert,
                         std::int64_t rows,
                         std::int64_t cols) const {
    const WeightRef* ref = source_.weights.Find(slot, layer, expert);
    if (ref == nullptr) {
      return NotFound("{} holds no {} for layer {}, which the model needs",
                      source_.path,
                      SlotName(slot),
                      layer);
    }
    const bool vector = cols == 1 && ref->rows * ref->cols == rows;
    if (!vector && (ref->rows != rows || ref->cols != cols)) {
      return DataLoss("tensor {} of {} gives [{}, {}] for {}; [{}, {}] is needed",
                      ref->tensor->name,
                      source_.path,
                      ref->rows,
                      ref->cols,
                      SlotName(slot),
                      rows,
                      cols);
    }
    return *ref;
  }

  // Values `range` of a vector of n, as floats.
  Result<> AddVector(
      Slot slot, std::int64_t layer, std::int64_t n, Range range, Vector* target, float add = 0) {
    INFERD_ASSIGN(const WeightRef ref, Find(slot, layer, -1, n, 1));
    const DType type = ref.dtype();
    if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16) {
      return Unimplemented("tensor {} of {} is stored as {}; vectors are read as F32, F16 or BF16",
                           ref.tensor->name,
                           source_.path,
                           DTypeName(type));
    }
    jobs_.vectors.push_back({ref, range, add, target});
    return {};
  }

  Result<> AddNorm(Slot slot, std::int64_t layer, std::int64_t n, Vector* target) {
    return AddVector(slot, layer, n, {0, n}, target, spec_.norm_plus_one ? 1.0F : 0.0F);
  }

  // Rows `range` of a [rows, cols] matrix. An empty range leaves the target null.
  Result<> AddRows(Slot slot,
                   std::int64_t layer,
                   std::int64_t expert,
                   std::int64_t rows,
                   std::int64_t cols,
                   Range range,
                   Matrix* target) {
    INFERD_ASSIGN(const WeightRef ref, Find(slot, layer, expert, rows, cols));
    if (range.size() > 0) {
      AddJob(ref.Rows(range.begin, range.end), {0, cols}, expert >= 0, target);
    }
    return {};
  }

  // Columns `range` of a [rows, cols] matrix; the cut must fall on block borders.
  Result<> AddColumns(Slot slot,
                      std::int64_t layer,
                      std::int64_t expert,
                      std::int64_t rows,
                      std::int64_t cols,
                      Range range,
                      Matrix* target) {
    INFERD_ASSIGN(const WeightRef ref, Find(slot, layer, expert, rows, cols));
    if (range.size() == 0) {
      return {};
    }
    const std::int64_t block = BlockElements(ref.dtype());
    if (range.begin % block != 0 || range.end % block != 0) {
      return InvalidArgument(
          "tensor {} ({}) cannot be cut at columns [{}, {}): its blocks hold {} values; use fewer "
          "ranks",
          ref.tensor->name,
          DTypeName(ref.dtype()),
          range.begin,
          range.end,
          block);
    }
    AddJob(ref, range, expert >= 0, target);
    return {};
  }

  void AddJob(const WeightRef& ref, Range columns, bool of_expert, Matrix* target) {
    const DType type = ref.dtype();
    jobs_.matrices.push_back(
        {.ref = ref,
         .col_begin = columns.begin,
         .col_end = columns.end,
         .of_expert = of_expert,
         .target = target,
         .bytes = ref.rows * (columns.size() / BlockElements(type) * BlockBytes(type))});
  }

  Result<> AddWholeModel() {
    const std::int64_t hidden = spec_.hidden_size;
    if (shard_.has_embedding) {
      INFERD_ASSIGN(const WeightRef whole,
                    Find(Slot::kEmbedding, -1, -1, spec_.vocab_size, hidden));
      jobs_.embedding = whole.Rows(shard_.vocab.begin, shard_.vocab.end);
    }
    return AddHead();
  }

  Result<> AddHead() {
    const std::int64_t hidden = spec_.hidden_size;
    if (shard_.has_head) {
      INFERD_TRY(AddNorm(Slot::kFinalNorm, -1, hidden, &weights_.final_norm));
      INFERD_TRY(
          AddRows(Slot::kHead, -1, -1, spec_.vocab_size, hidden, shard_.vocab, &weights_.head));
      if (shard_.has_embedding && jobs_.matrices.back().ref.tensor == jobs_.embedding.tensor) {
        jobs_.matrices.back().keep_mapped = true;
        jobs_.head_is_embedding = true;
      }
    }
    return {};
  }

  Result<> AddAttention(std::int64_t layer, LayerWeights& target) {
    const std::int64_t hidden = spec_.hidden_size;
    const std::int64_t dim = spec_.head_dim;
    const Range q{shard_.q_heads.begin * dim, shard_.q_heads.end * dim};
    const Range kv{shard_.kv_heads.begin * dim, shard_.kv_heads.end * dim};
    const std::int64_t all_q = spec_.num_heads * dim;
    const std::int64_t all_kv = spec_.num_kv_heads * dim;
    INFERD_TRY(AddNorm(Slot::kAttnNorm, layer, hidden, &target.attn_norm));
    INFERD_TRY(AddRows(Slot::kQ, layer, -1, all_q, hidden, q, &target.q));
    INFERD_TRY(AddRows(Slot::kK, layer, -1, all_kv, hidden, kv, &target.k));
    INFERD_TRY(AddRows(Slot::kV, layer, -1, all_kv, hidden, kv, &target.v));
    INFERD_TRY(AddRows(Slot::kO, layer, -1, hidden, all_q, hidden_rows_, &target.o));
    if (spec_.qkv_bias) {
      INFERD_TRY(AddVector(Slot::kQBias, layer, all_q, q, &target.q_bias));
      INFERD_TRY(AddVector(Slot::kKBias, layer, all_kv, kv, &target.k_bias));
      INFERD_TRY(AddVector(Slot::kVBias, layer, all_kv, kv, &target.v_bias));
    }
    if (spec_.o_bias) {
      INFERD_TRY(AddVector(Slot::kOBias, layer, hidden, hidden_rows_, &target.o_bias));
    }
    if (spec_.qk_norm) {
      INFERD_TRY(AddNorm(Slot::kQNorm, layer, dim, &target.q_norm));
      INFERD_TRY(AddNorm(Slot::kKNorm, layer, dim, &target.k_norm));
    }
    if (spec_.attention_sinks) {
      INFERD_TRY(AddVector(Slot::kSinks, layer, spec_.num_heads, shard_.q_heads, &target.sinks));
    }
    if (spec_.sandwich_norm) {
      INFERD_TRY(AddNorm(Slot::kPostAttnNorm, layer, hidden, &target.post_attn_norm));
      INFERD_TRY(AddNorm(Slot::kPostFfnNorm, layer, hidden, &target.post_ffn_norm));
    }
    return AddNorm(Slot::kFfnNorm, layer, hidden, &target.ffn_norm);
  }

  // The latents' projections are whole on every rank.
  Result<> AddLatentAttention(std::int64_t layer, LayerWeights& target) {
    const spec::LatentSpec& latent = spec_.latent;
    const std::int64_t hidden = spec_.hidden_size;
    const std::int64_t dim = spec_.head_dim;
    const std::int64_t both = latent.nope_dim + latent.value_dim;
    const Range heads = shard_.q_heads;
    INFERD_TRY(AddNorm(Slot::kAttnNorm, layer, hidden, &target.attn_norm));
    if (latent.q_rank > 0) {
      INFERD_TRY(
          AddRows(Slot::kQA, layer, -1, latent.q_rank, hidden, {0, latent.q_rank}, &target.q_a));
      INFERD_TRY(AddNorm(Slot::kQANorm, layer, latent.q_rank, &target.q_a_norm));
    }
    INFERD_TRY(AddRows(Slot::kQ,
                       layer,
                       -1,
                       spec_.num_heads * dim,
                       latent.q_rank > 0 ? latent.q_rank : hidden,
                       {heads.begin * dim, heads.end * dim},
                       &target.q));
    INFERD_TRY(
        AddRows(Slot::kKvA, layer, -1, latent.width(), hidden, {0, latent.width()}, &target.kv_a));
    INFERD_TRY(AddNorm(Slot::kKvANorm, layer, latent.kv_rank, &target.kv_a_norm));
    INFERD_ASSIGN(const WeightRef kv_b,
                  Find(Slot::kKvB, layer, -1, spec_.num_heads * both, latent.kv_rank));
    jobs_.latents.push_back({kv_b.Rows(heads.begin * both, heads.end * both), &target});
    INFERD_TRY(AddRows(
        Slot::kO, layer, -1, hidden, spec_.num_heads * latent.value_dim, hidden_rows_, &target.o));
    return AddNorm(Slot::kFfnNorm, layer, hidden, &target.ffn_norm);
  }

  Result<> AddFfn(std::int64_t layer, LayerWeights& target) {
    const std::int64_t hidden = spec_.hidden_size;
    const std::int64_t ffn = spec_.intermediate_size;
    INFERD_TRY(AddRows(Slot::kGate, layer, -1, ffn, hidden, shard_.ffn, &target.gate));
    INFERD_TRY(AddRows(Slot::kUp, layer, -1, ffn, hidden, shard_.ffn, &target.up));
    INFERD_TRY(AddRows(Slot::kDown, layer, -1, hidden, ffn, hidden_rows_, &target.down));
    if (spec_.mlp_bias) {
      INFERD_TRY(AddVector(Slot::kGateBias, layer, ffn, shard_.ffn, &target.gate_bias));
      INFERD_TRY(AddVector(Slot::kUpBias, layer, ffn, shard_.ffn, &target.up_bias));
      INFERD_TRY(AddVector(Slot::kDownBias, layer, hidden, hidden_rows_, &target.down_bias));
    }
    return {};
  }

  Result<> AddMoe(std::int64_t layer, LayerWeights& target) {
    const spec::MoeSpec& moe = spec_.moe;
    const std::int64_t hidden = spec_.hidden_size;
    INFERD_TRY(AddRows(
        Slot::kRouter, layer, -1, moe.num_experts, hidden, {0, moe.num_experts}, &target.router));
    if (moe.choice_bias) {
      INFERD_TRY(AddVector(
          Slot::kRouterBias, layer, moe.num_experts, {0, moe.num_experts}, &target.router_bias));
    }
    target.experts.resize(static_cast<std::size_t>(3 * shard_.experts.size()));
    const std::int64_t ffn = moe.expert_intermediate_size;
    for (std::int64_t i = 0; i < shard_.experts.size() && shard_.expert_ffn.size() > 0; ++i) {
      const std::int64_t expert = shard_.experts.begin + i;
      Matrix* place = &target.experts[static_cast<std::size_t>(3 * i)];
      INFERD_TRY(AddRows(Slot::kExpertGate, layer, expert, ffn, hidden, shard_.expert_ffn, place));
      INFERD_TRY(
          AddRows(Slot::kExpertUp, layer, expert, ffn, hidden, shard_.expert_ffn, place + 1));
      INFERD_TRY(
          AddColumns(Slot::kExpertDown, layer, expert, hidden, ffn, shard_.expert_ffn, place + 2));
    }
    if (moe.shared_intermediate_size == 0) {
      return {};
    }
    const std::int64_t shared = moe.shared_intermediate_size;
    INFERD_TRY(AddRows(
        Slot::kSharedGate, layer, -1, shared, hidden, shard_.shared_ffn, &target.shared_gate));
    INFERD_TRY(
        AddRows(Slot::kSharedUp, layer, -1, shared, hidden, shard_.shared_ffn, &target.shared_up));
    INFERD_TRY(AddColumns(
        Slot::kSharedDown, layer, -1, hidden, shared, shard_.shared_ffn, &target.shared_down));
    if (moe.shared_gate) {
      INFERD_ASSIGN(const WeightRef ref, Find(Slot::kSharedExpertGate, layer, -1, hidden, 1));
      AddJob(ref, {0, ref.cols}, false, &target.shared_expert_gate);
      jobs_.matrices.back().as_row = true;
    }
    return {};
  }

  const store::Model& source_;
  const spec::ModelSpec& spec_;
  const spec::ShardPlan& shard_;
  ShardWeights& weights_;
  const Range hidden_rows_;
  WeightJobs jobs_;
};

}  // namespace

Result<WeightJobs> ListJobs(const store::Model& source,
                            const spec::ShardPlan& shard,
                            ShardWeights* weights) {
  return Lister(source, shard, weights).Run();
}

}  // namespace inferd::model
