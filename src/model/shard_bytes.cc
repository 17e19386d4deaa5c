// SPDX-License-Identifier: Apache-2.0
// What loading a shard reads and what it will take, told before it is done.
#include "base/error.h"
#include "model/made_rows.h"
#include "model/weight_jobs.h"
#include "ops/packed_bytes.h"
#include "store/quantised_parts.h"

namespace inferd::model {
namespace {

using store::WeightRef;

void Note(const WeightRef& ref, std::vector<store::FileRange>* ranges) {
  const store::TensorInfo& tensor = *ref.tensor;
  if (tensor.parts == nullptr) {
    const auto begin = static_cast<std::int64_t>(
        tensor.offset + static_cast<std::uint64_t>(ref.row_begin) * tensor.row_bytes());
    ranges->push_back({tensor.file, begin, begin + static_cast<std::int64_t>(ref.bytes())});
    return;
  }
  // Of a quantised layer all parts: some are stored along the columns.
  const store::QuantisedParts& parts = *tensor.parts;
  ranges->push_back(store::RangeOf(parts.weight));
  if (parts.layout != store::QuantisedParts::Layout::kPlain) {
    ranges->push_back(store::RangeOf(parts.scales));
  }
  if (parts.zeros) {
    ranges->push_back(store::RangeOf(*parts.zeros));
  }
  if (parts.group_index) {
    ranges->push_back(store::RangeOf(*parts.group_index));
  }
}

std::int64_t BytesOf(const store::Model& source, const MatrixJob& job, ops::DeviceClass device) {
  const WeightRef& ref = job.ref;
  if (job.as_row) {
    return ops::PackedBytes(device, ref.dtype(), 1, ref.rows * ref.cols);
  }
  const spec::Range columns{job.col_begin, job.col_end};
  if (ref.tensor->parts == nullptr) {
    return ops::PackedBytes(device, ref.dtype(), ref.rows, columns.size());
  }
  const RowKinds kinds{ops::TakesScales(device), ops::TakesColumnOrder(device)};
  const RowForm form = FormOfRows(source.tensors, ref, columns, job.of_expert, kinds);
  std::int64_t bytes = ops::PackedBytes(device, form.type, ref.rows, form.k);
  bytes += ref.rows * form.scale_groups * static_cast<std::int64_t>(sizeof(float));
  bytes += form.grouped ? form.k * static_cast<std::int64_t>(sizeof(std::int32_t)) : 0;
  return bytes;
}

// Of both matrices that PackLatent makes.
std::int64_t BytesOf(const store::Model& source, const LatentJob& job, ops::DeviceClass device) {
  const spec::LatentSpec& latent = source.spec.latent;
  const std::int64_t heads = job.ref.rows / (latent.nope_dim + latent.value_dim);
  const DType type = job.ref.tensor->parts != nullptr ? DType::kBF16 : job.ref.dtype();
  return ops::PackedBytes(device, type, heads * latent.kv_rank, latent.nope_dim) +
         ops::PackedBytes(device, type, heads * latent.value_dim, latent.kv_rank);
}

}  // namespace

Result<std::vector<store::FileRange>> RangesOfShard(const store::Model& source,
                                                    const spec::ShardPlan& shard) {
  ShardWeights places;
  INFERD_ASSIGN(const WeightJobs jobs, ListJobs(source, shard, &places));
  std::vector<store::FileRange> ranges;
  for (const VectorJob& job : jobs.vectors) {
    Note(job.ref, &ranges);
  }
  if (jobs.embedding.tensor != nullptr) {
    Note(jobs.embedding, &ranges);
  }
  for (const MatrixJob& job : jobs.matrices) {
    Note(job.ref, &ranges);
  }
  for (const LatentJob& job : jobs.latents) {
    Note(job.ref, &ranges);
  }
  return ranges;
}

Result<std::int64_t> WeightBytesOfShard(const store::Model& source,
                                        const spec::ShardPlan& shard,
                                        ops::DeviceClass device) {
  ShardWeights places;
  INFERD_ASSIGN(const WeightJobs jobs, ListJobs(source, shard, &places));
  std::int64_t bytes = 0;
  for (const VectorJob& job : jobs.vectors) {
    bytes += job.range.size() * static_cast<std::int64_t>(sizeof(float));
  }
  if (const WeightRef& rows = jobs.embedding; rows.tensor != nullptr) {
    bytes += ops::TableBytes(device, rows.dtype(), rows.rows, rows.cols);
  }
  for (const MatrixJob& job : jobs.matrices) {
    bytes += BytesOf(source, job, device);
  }
  for (const LatentJob& job : jobs.latents) {
    bytes += BytesOf(source, job, device);
  }
  return bytes;
}

}  // namespace inferd::model
