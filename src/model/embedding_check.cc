// SPDX-License-Identifier: Apache-2.0
#include "model/embedding_check.h"

#include "base/error.h"
#include "model/stored_values.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace inferd::model {
namespace {

Result<std::optional<std::int64_t>> FirstNonFiniteBlock(const EmbeddingRows& table,
                                                        std::int64_t hidden,
                                                        ops::Device& device) {
  constexpr std::int64_t kRows = 256;
  std::vector<std::int32_t> ids;
  std::vector<float> values(static_cast<std::size_t>(kRows * hidden));
  INFERD_ASSIGN(const ops::Memory rows,
                device.Allocate(values.size() * sizeof(float), "checking the embedding"));
  for (std::int64_t begin = 0; begin < table.count; begin += kRows) {
    ids.clear();
    for (std::int64_t i = begin; i < std::min(table.count, begin + kRows); ++i) {
      ids.push_back(static_cast<std::int32_t>(table.first_id + i));
    }
    device.Embed(table.table.type,
                 table.table.rows,
                 table.count,
                 table.first_id,
                 ids,
                 hidden,
                 1.0F,
                 rows.floats());
    device.Copy(values.data(), rows.data(), rows.bytes());
    INFERD_TRY(device.Wait());
    const auto used = std::as_bytes(std::span(values))
                          .first(ids.size() * static_cast<std::size_t>(hidden) * sizeof(float));
    if (const auto bad = FirstNonFinite(DType::kF32, used)) {
      return std::optional(*bad + begin * hidden);
    }
  }
  return std::optional<std::int64_t>();
}

}  // namespace

Result<> CheckEmbedding(const store::Model& source,
                        const store::WeightRef& ref,
                        const EmbeddingRows& rows,
                        ops::Device& device) {
  const std::int64_t hidden = source.spec.hidden_size;
  std::optional<std::int64_t> bad;
  if (IsPlain(ref.dtype())) {
    bad = FirstNonFinite(ref.dtype(), store::Weights::Data(source.tensors, ref));
  } else {
    INFERD_ASSIGN(bad, FirstNonFiniteBlock(rows, hidden, device));
  }
  const base::MappedFile& file = source.tensors.files()[ref.tensor->file];
  file.DontNeed(
      ref.tensor->offset + static_cast<std::uint64_t>(ref.row_begin) * ref.tensor->row_bytes(),
      ref.bytes());
  if (bad) {
    return DataLoss("tensor {} of {} holds NaN or infinity in row {}",
                    ref.tensor->name,
                    source.path,
                    *bad / hidden + rows.first_id);
  }
  return {};
}

}  // namespace inferd::model
