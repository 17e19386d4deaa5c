// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include "base/error.h"
#include "model/embedding_check.h"
#include "model/latent_weights.h"
#include "model/made_rows.h"
#include "model/stored_values.h"
#include "store/quantised.h"
#include "store/quantised_parts.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>

namespace inferd::model {
namespace {

using spec::Range;
using store::Slot;
using store::WeightRef;

// One matrix still to be packed: columns [col_begin, col_end) of `ref`.
struct PackJob {
  WeightRef ref;
  std::int64_t col_begin = 0;
  std::int64_t col_end = 0;
  bool as_row = false;     // a vector of n seen as a matrix [1, n]
  bool of_expert = false;  // multiplied in groups, where all experts share their inputs
  bool keep_mapped = false;
  Matrix* target = nullptr;
  std::int64_t bytes = 0;
};

// Rows of kv_b_proj, from which two matrices are made.
struct LatentJob {
  WeightRef ref;
  LayerWeights* target = nullptr;
};

class Loader {
 public:
  Loader(const store::Model& source, const spec::ShardPlan& shard, ops::Device& device)
      : source_(source),
        spec_(source.spec),
        shard_(shard),
        device_(device),
        hidden_rows_(spec::HiddenRows(source.spec, shard)) {}

  Result<ShardWeights> Load(const LoadWeightsOptions& options) {
    INFERD_TRY(AddAll());
    INFERD_TRY(PackAll(options));
    if (shard_.has_embedding && !embedding_checked_) {
      INFERD_TRY(CheckEmbedding(source_, embedding_, weights_.embedding, device_));
    }
    for (const LatentJob& job : latent_jobs_) {
      INFERD_TRY(PackLatent(source_, job.ref, device_, job.target));
      weights_.bytes +=
          static_cast<std::int64_t>(job.target->k_up->bytes() + job.target->v_up->bytes());
    }
    for (LayerWeights& layer : weights_.layers) {
      ListExperts(layer);
    }
    return std::move(weights_);
  }

  // What Load would read.
  Result<std::vector<store::FileRange>> Plan() {
    planning_ = true;
    INFERD_TRY(AddAll());
    for (const PackJob& job : jobs_) {
      Note(job.ref);
    }
    for (const LatentJob& job : latent_jobs_) {
      Note(job.ref);
    }
    return std::move(planned_);
  }

 private:
  Result<> AddAll() {
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
    return {};
  }

  void NoteWhole(const store::TensorInfo& tensor) {
    planned_.push_back({tensor.file,
                        static_cast<std::int64_t>(tensor.offset),
                        static_cast<std::int64_t>(tensor.offset + tensor.bytes)});
  }

  void Note(const WeightRef& ref) {
    const store::TensorInfo& tensor = *ref.tensor;
    if (tensor.parts == nullptr) {
      const auto begin = static_cast<std::int64_t>(
          tensor.offset + static_cast<std::uint64_t>(ref.row_begin) * tensor.row_bytes());
      planned_.push_back({tensor.file, begin, begin + static_cast<std::int64_t>(ref.bytes())});
      return;
    }
    // Of a quantised layer all parts: some are stored along the columns.
    const store::QuantisedParts& parts = *tensor.parts;
    NoteWhole(parts.weight);
    if (parts.layout != store::QuantisedParts::Layout::kPlain) {
      NoteWhole(parts.scales);
    }
    if (parts.zeros) {
      NoteWhole(*parts.zeros);
    }
    if (parts.group_index) {
      NoteWhole(*parts.group_index);
    }
  }

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
    if (planning_) {
      Note(ref);
      return {};
    }
    const auto size = static_cast<std::size_t>(BlockBytes(type));
    const auto data = store::Weights::Data(source_.tensors, ref)
                          .subspan(static_cast<std::size_t>(range.begin) * size,
                                   static_cast<std::size_t>(range.size()) * size);
    if (const auto bad = FirstNonFinite(type, data)) {
      return DataLoss("tensor {} of {} holds NaN or infinity at value {}",
                      ref.tensor->name,
                      source_.path,
                      *bad + range.begin);
    }
    std::vector<float> values = ToFloats(type, data);
    for (float& value : values) {
      value += add;
    }
    INFERD_ASSIGN(*target, Vector::Make(std::move(values), device_));
    weights_.bytes += static_cast<std::int64_t>(target->size() * sizeof(float));
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
      AddJob({.ref = ref.Rows(range.begin, range.end),
              .col_begin = 0,
              .col_end = cols,
              .of_expert = expert >= 0,
              .target = target});
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
    AddJob({.ref = ref,
            .col_begin = range.begin,
            .col_end = range.end,
            .of_expert = expert >= 0,
            .target = target});
    return {};
  }

  void AddJob(PackJob job) {
    const std::int64_t block = BlockElements(job.ref.dtype());
    job.bytes =
        job.ref.rows * ((job.col_end - job.col_begin) / block * BlockBytes(job.ref.dtype()));
    jobs_.push_back(job);
  }

  Result<> AddWholeModel() {
    const std::int64_t hidden = spec_.hidden_size;
    if (shard_.has_embedding) {
      INFERD_ASSIGN(const WeightRef whole,
                    Find(Slot::kEmbedding, -1, -1, spec_.vocab_size, hidden));
      embedding_ = whole.Rows(shard_.vocab.begin, shard_.vocab.end);
      if (planning_) {
        Note(embedding_);
        return AddHead();
      }
      const auto data = store::Weights::Data(source_.tensors, embedding_);
      weights_.embedding.count = shard_.vocab.size();
      weights_.embedding.first_id = shard_.vocab.begin;
      INFERD_ASSIGN(weights_.embedding.table,
                    device_.MakeTable(whole.dtype(), data, shard_.vocab.size(), hidden));
      weights_.bytes += static_cast<std::int64_t>(weights_.embedding.table.copy.bytes());
    }
    return AddHead();
  }

  Result<> AddHead() {
    const std::int64_t hidden = spec_.hidden_size;
    if (shard_.has_head) {
      INFERD_TRY(AddNorm(Slot::kFinalNorm, -1, hidden, &weights_.final_norm));
      INFERD_TRY(
          AddRows(Slot::kHead, -1, -1, spec_.vocab_size, hidden, shard_.vocab, &weights_.head));
      if (shard_.has_embedding && jobs_.back().ref.tensor == embedding_.tensor) {
        jobs_.back().keep_mapped = true;
        embedding_checked_ = true;
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
    latent_jobs_.push_back({kv_b.Rows(heads.begin * both, heads.end * both), &target});
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
      AddJob({.ref = ref,
              .col_begin = 0,
              .col_end = ref.cols,
              .as_row = true,
              .target = &target.shared_expert_gate});
    }
    return {};
  }

  static void ListExperts(LayerWeights& layer) {
    for (std::size_t i = 0; i + 2 < layer.experts.size(); i += 3) {
      layer.expert_gate.push_back(layer.experts[i].get());
      layer.expert_up.push_back(layer.experts[i + 1].get());
      layer.expert_down.push_back(layer.experts[i + 2].get());
    }
  }

  // A quantised layer: its rows are made, and packed as one matrix.
  Result<> PackMade(const PackJob& job) {
    const MadeRows made =
        MakeRowsFor(source_.tensors, job.ref, {job.col_begin, job.col_end}, job.of_expert, device_);
    store::DropPages(source_.tensors, *job.ref.tensor);
    ops::MatrixScales scales;
    if (made.scales) {
      scales = {made.scales->values, made.scales->group_columns, made.scales->by_token};
    }
    ops::ColumnOrder order;
    if (!made.columns.empty()) {
      order = {made.columns, job.col_end - job.col_begin};
    }
    return PackRows(
        job, made.type, made.bytes, job.ref.rows, made.k, made.row_bytes, scales, order);
  }

  Result<> PackRows(const PackJob& job,
                    DType type,
                    std::span<const std::byte> rows,
                    std::int64_t n,
                    std::int64_t k,
                    std::size_t row_bytes,
                    const ops::MatrixScales& scales = {},
                    const ops::ColumnOrder& order = {}) {
    const WeightRef& ref = job.ref;
    const auto length = static_cast<std::size_t>(k / BlockElements(type) * BlockBytes(type));
    for (std::int64_t row = 0; IsPlain(type) && row < n; ++row) {
      const auto values = rows.subspan(static_cast<std::size_t>(row) * row_bytes, length);
      if (const auto bad = FirstNonFinite(type, values)) {
        return DataLoss("tensor {} of {} holds NaN or infinity in row {}, value {}",
                        ref.tensor->name,
                        source_.path,
                        row + ref.row_begin,
                        *bad + job.col_begin);
      }
    }
    auto packed = device_.Pack(type, rows, n, k, row_bytes, scales, order);
    if (!packed.ok()) {
      return packed.error().WithContext(
          fmt::format("tensor {} of {}", ref.tensor->name, source_.path));
    }
    *job.target = *std::move(packed);
    return {};
  }

  Result<> Pack(const PackJob& job) {
    const WeightRef& ref = job.ref;
    if (ref.tensor->parts != nullptr) {
      return PackMade(job);
    }
    const DType type = ref.dtype();
    const std::int64_t block = BlockElements(type);
    const auto offset = static_cast<std::size_t>(job.col_begin / block * BlockBytes(type));
    const auto length =
        static_cast<std::size_t>((job.col_end - job.col_begin) / block * BlockBytes(type));
    const auto all = store::Weights::Data(source_.tensors, ref);
    const std::int64_t n = job.as_row ? 1 : ref.rows;
    const std::int64_t k = job.as_row ? ref.rows * ref.cols : job.col_end - job.col_begin;
    const std::size_t row_bytes =
        job.as_row ? all.size() : static_cast<std::size_t>(ref.tensor->row_bytes());
    const auto rows =
        job.as_row ? all
                   : all.subspan(offset, static_cast<std::size_t>(n - 1) * row_bytes + length);
    INFERD_TRY(PackRows(job, type, rows, n, k, row_bytes));
    if (!job.keep_mapped) {
      const base::MappedFile& file = source_.tensors.files()[ref.tensor->file];
      file.DontNeed(
          ref.tensor->offset + static_cast<std::uint64_t>(ref.row_begin) * ref.tensor->row_bytes(),
          ref.bytes());
    }
    return {};
  }

  // Largest first.
  Result<> PackAll(const LoadWeightsOptions& options) {
    std::stable_sort(jobs_.begin(), jobs_.end(), [](const PackJob& a, const PackJob& b) {
      return a.bytes > b.bytes;
    });
    for (const PackJob& job : jobs_) {
      total_bytes_ += job.bytes;
    }
    options_ = &options;
    PackUntilDone();  // Pack itself is one parallel region per matrix; regions do not nest.
    if (failure_) {
      return *std::move(failure_);
    }
    for (const PackJob& job : jobs_) {
      weights_.bytes += static_cast<std::int64_t>((*job.target)->bytes());
    }
    return {};
  }

  void PackUntilDone() {
    while (!failed_.load(std::memory_order_relaxed)) {
      const std::size_t next = next_job_.fetch_add(1, std::memory_order_relaxed);
      if (next >= jobs_.size()) {
        return;
      }
      Result<> done = Pack(jobs_[next]);
      const std::lock_guard lock(mutex_);
      if (!done.ok()) {
        failed_.store(true, std::memory_order_relaxed);
        if (!failure_) {
          failure_ = std::move(done).error();
        }
        return;
      }
      done_bytes_ += jobs_[next].bytes;
      if (options_->progress) {
        options_->progress(done_bytes_, total_bytes_);
      }
    }
  }

  const store::Model& source_;
  const spec::ModelSpec& spec_;
  const spec::ShardPlan& shard_;
  ops::Device& device_;
  const Range hidden_rows_;
  ShardWeights weights_;
  WeightRef embedding_;
  bool embedding_checked_ = false;
  bool planning_ = false;  // nothing is read; what would be is noted
  std::vector<store::FileRange> planned_;
  std::vector<PackJob> jobs_;
  std::vector<LatentJob> latent_jobs_;

  const LoadWeightsOptions* options_ = nullptr;
  std::atomic<std::size_t> next_job_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;  // guards what follows while packing
  std::optional<Error> failure_;
  std::int64_t done_bytes_ = 0;
  std::int64_t total_bytes_ = 0;
};

}  // namespace

Result<Vector> Vector::Make(std::vector<float> values, ops::Device& device) {
  Vector vector;
  vector.host_ = std::move(values);
  if (!device.SharesHostMemory() && !vector.empty()) {
    const std::size_t bytes = vector.size() * sizeof(float);
    INFERD_ASSIGN(vector.device_, device.Allocate(bytes, "norms and biases"));
    device.Copy(vector.device_.data(), vector.host_.data(), bytes);
  }
  return vector;
}

Result<std::vector<store::FileRange>> BytesOfShard(const store::Model& source,
                                                   const spec::ShardPlan& shard,
                                                   ops::Device& device) {
  return Loader(source, shard, device).Plan();
}

Result<ShardWeights> LoadWeights(const store::Model& source,
                                 const spec::ShardPlan& shard,
                                 ops::Device& device,
                                 const LoadWeightsOptions& options) {
  return Loader(source, shard, device).Load(options);
}

}  // namespace inferd::model
