// SPDX-License-Identifier: Apache-2.0
#include "model/latent_weights.h"

#include "base/error.h"
#include "model/made_rows.h"
#include "model/stored_values.h"
#include "store/quantised.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace inferd::model {
namespace {

Result<Matrix> Pack(const store::WeightRef& ref,
                    DType type,
                    const std::vector<std::byte>& rows,
                    std::int64_t n,
                    std::int64_t k,
                    ops::Device& device) {
  auto packed = device.Pack(type, rows, n, k, static_cast<std::size_t>(k * BlockBytes(type)));
  if (!packed.ok()) {
    return packed.error().WithContext("tensor " + ref.tensor->name);
  }
  return *std::move(packed);
}

}  // namespace

Result<> PackLatent(const store::Model& source,
                    const store::WeightRef& ref,
                    ops::Device& device,
                    LayerWeights* target) {
  const spec::LatentSpec& latent = source.spec.latent;
  const std::int64_t nope = latent.nope_dim;
  const std::int64_t rank = latent.kv_rank;
  const std::int64_t both = nope + latent.value_dim;
  const std::int64_t heads = ref.rows / both;
  std::vector<std::byte> made;
  std::span<const std::byte> stored;
  DType type = ref.dtype();
  if (ref.tensor->parts != nullptr) {
    type = DType::kBF16;
    made = MakeRowsAs(type, source.tensors, ref, {0, ref.cols}, device);
    stored = made;
    store::DropPages(source.tensors, *ref.tensor);
  } else if (IsPlain(type)) {
    stored = store::Weights::Data(source.tensors, ref);
  } else {
    return Unimplemented(
        "tensor {} of {} is stored as {}; F32, F16, BF16 and FP8 with scales can be the {}",
        ref.tensor->name,
        source.path,
        DTypeName(type),
        SlotName(store::Slot::kKvB));
  }
  if (const auto bad = FirstNonFinite(type, stored)) {
    return DataLoss("tensor {} of {} holds NaN or infinity in row {}, value {}",
                    ref.tensor->name,
                    source.path,
                    *bad / rank + ref.row_begin,
                    *bad % rank);
  }
  const auto size = static_cast<std::size_t>(BlockBytes(type));
  std::vector<std::byte> k_up(static_cast<std::size_t>(heads * rank * nope) * size);
  std::vector<std::byte> v_up(static_cast<std::size_t>(heads * latent.value_dim * rank) * size);
  auto split = [&](std::int64_t head) {
    const std::byte* from = stored.data() + static_cast<std::size_t>(head * both * rank) * size;
    std::byte* to = k_up.data() + static_cast<std::size_t>(head * rank * nope) * size;
    for (std::int64_t i = 0; i < nope; ++i) {
      for (std::int64_t c = 0; c < rank; ++c) {
        std::memcpy(to + static_cast<std::size_t>(c * nope + i) * size,
                    from + static_cast<std::size_t>(i * rank + c) * size,
                    size);
      }
    }
    const std::size_t bytes = static_cast<std::size_t>(latent.value_dim * rank) * size;
    std::memcpy(v_up.data() + static_cast<std::size_t>(head) * bytes,
                from + static_cast<std::size_t>(nope * rank) * size,
                bytes);
  };
  device.ParallelFor(heads, &split, [](void* opaque, std::int64_t head) {
    (*static_cast<decltype(split)*>(opaque))(head);
  });
  INFERD_ASSIGN(target->k_up, Pack(ref, type, k_up, heads * rank, nope, device));
  INFERD_ASSIGN(target->v_up, Pack(ref, type, v_up, heads * latent.value_dim, rank, device));
  if (ref.tensor->parts == nullptr) {
    const base::MappedFile& file = source.tensors.files()[ref.tensor->file];
    file.DontNeed(
        ref.tensor->offset + static_cast<std::uint64_t>(ref.row_begin) * ref.tensor->row_bytes(),
        ref.bytes());
  }
  return {};
}

}  // namespace inferd::model
