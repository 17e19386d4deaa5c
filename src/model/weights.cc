// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include "base/error.h"
#include "model/embedding_check.h"
#include "model/latent_weights.h"
#include "model/made_rows.h"
#include "model/stored_values.h"
#include "model/weight_jobs.h"
#include "store/quantised.h"
#include "store/quantised_parts.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>

namespace inferd::model {
namespace {

using store::WeightRef;

class Loader {
 public:
  Loader(const store::Model& source, const spec::ShardPlan& shard, ops::Device& device)
      : source_(source), shard_(shard), device_(device) {}

  Result<ShardWeights> Load(const LoadWeightsOptions& options) {
    INFERD_ASSIGN(jobs_, ListJobs(source_, shard_, &weights_));
    for (const VectorJob& job : jobs_.vectors) {
      INFERD_TRY(Read(job));
    }
    if (shard_.has_embedding) {
      INFERD_TRY(MakeTable());
    }
    INFERD_TRY(PackAll(options));
    if (shard_.has_embedding && !jobs_.head_is_embedding) {
      INFERD_TRY(CheckEmbedding(source_, jobs_.embedding, weights_.embedding, device_));
    }
    for (const LatentJob& job : jobs_.latents) {
      INFERD_TRY(PackLatent(source_, job.ref, device_, job.target));
      weights_.bytes +=
          static_cast<std::int64_t>(job.target->k_up->bytes() + job.target->v_up->bytes());
    }
    for (LayerWeights& layer : weights_.layers) {
      ListExperts(layer);
    }
    return std::move(weights_);
  }

 private:
  Result<> Read(const VectorJob& job) {
    const DType type = job.ref.dtype();
    const auto size = static_cast<std::size_t>(BlockBytes(type));
    const auto data = store::Weights::Data(source_.tensors, job.ref)
                          .subspan(static_cast<std::size_t>(job.range.begin) * size,
                                   static_cast<std::size_t>(job.range.size()) * size);
    if (const auto bad = FirstNonFinite(type, data)) {
      return DataLoss("tensor {} of {} holds NaN or infinity at value {}",
                      job.ref.tensor->name,
                      source_.path,
                      *bad + job.range.begin);
    }
    std::vector<float> values = ToFloats(type, data);
    for (float& value : values) {
      value += job.add;
    }
    INFERD_ASSIGN(*job.target, Vector::Make(std::move(values), device_));
    weights_.bytes += static_cast<std::int64_t>(job.target->size() * sizeof(float));
    return {};
  }

  Result<> MakeTable() {
    const WeightRef& rows = jobs_.embedding;
    weights_.embedding.count = rows.rows;
    weights_.embedding.first_id = shard_.vocab.begin;
    INFERD_ASSIGN(
        weights_.embedding.table,
        device_.MakeTable(
            rows.dtype(), store::Weights::Data(source_.tensors, rows), rows.rows, rows.cols));
    weights_.bytes += static_cast<std::int64_t>(weights_.embedding.table.copy.bytes());
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
  Result<> PackMade(const MatrixJob& job) {
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
        job, made.form.type, made.bytes, job.ref.rows, made.form.k, made.row_bytes, scales, order);
  }

  Result<> PackRows(const MatrixJob& job,
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

  Result<> Pack(const MatrixJob& job) {
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
    std::stable_sort(jobs_.matrices.begin(),
                     jobs_.matrices.end(),
                     [](const MatrixJob& a, const MatrixJob& b) { return a.bytes > b.bytes; });
    for (const MatrixJob& job : jobs_.matrices) {
      total_bytes_ += job.bytes;
    }
    options_ = &options;
    PackUntilDone();  // Pack itself is one parallel region per matrix; regions do not nest.
    if (failure_) {
      return *std::move(failure_);
    }
    for (const MatrixJob& job : jobs_.matrices) {
      weights_.bytes += static_cast<std::int64_t>((*job.target)->bytes());
    }
    return {};
  }

  void PackUntilDone() {
    while (!failed_.load(std::memory_order_relaxed)) {
      const std::size_t next = next_job_.fetch_add(1, std::memory_order_relaxed);
      if (next >= jobs_.matrices.size()) {
        return;
      }
      Result<> done = Pack(jobs_.matrices[next]);
      const std::lock_guard lock(mutex_);
      if (!done.ok()) {
        failed_.store(true, std::memory_order_relaxed);
        if (!failure_) {
          failure_ = std::move(done).error();
        }
        return;
      }
      done_bytes_ += jobs_.matrices[next].bytes;
      if (options_->progress) {
        options_->progress(done_bytes_, total_bytes_);
      }
    }
  }

  const store::Model& source_;
  const spec::ShardPlan& shard_;
  ops::Device& device_;
  ShardWeights weights_;
  WeightJobs jobs_;

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

Result<ShardWeights> LoadWeights(const store::Model& source,
                                 const spec::ShardPlan& shard,
                                 ops::Device& device,
                                 const LoadWeightsOptions& options) {
  return Loader(source, shard, device).Load(options);
}

}  // namespace inferd::model
