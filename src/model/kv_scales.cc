// SPDX-License-Identifier: Apache-2.0
#include "model/kv_scales.h"

#include "base/dtype.h"
#include "base/error.h"
#include "base/float_bits.h"
#include "model/stored_values.h"

#include <fmt/ranges.h>

#include <cmath>

namespace inferd::model {
namespace {

using store::Slot;

Result<float> ReadScale(const store::Model& source, Slot slot, std::int64_t layer) {
  const store::WeightRef* const ref = source.weights.Find(slot, layer);
  if (ref == nullptr) {
    return 1.0F;
  }
  const store::TensorInfo& tensor = *ref->tensor;
  if (tensor.rows() != 1 || tensor.cols() != 1 || !IsPlain(tensor.dtype)) {
    return Unimplemented(
        "tensor {} of {} is of type {} and shape [{}]; one plain number scales all {} "
        "of a layer (--kv-cache-dtype float16 does without)",
        tensor.name,
        source.path,
        DTypeName(tensor.dtype),
        fmt::join(tensor.shape, ", "),
        slot == Slot::kKScale ? "K" : "V");
  }
  const float scale = PlainToFloat(tensor.dtype, store::Weights::Data(source.tensors, *ref).data());
  // The other way round it must be a number too: K and V are divided by it.
  if (!(scale > 0) || !std::isfinite(scale) || !std::isfinite(1 / scale)) {
    return DataLoss("tensor {} of {} is {}; what K and V are divided by is a number above 0",
                    tensor.name,
                    source.path,
                    scale);
  }
  return scale;
}

}  // namespace

Result<std::vector<KvScale>> ReadKvScales(const store::Model& source,
                                          const spec::ShardPlan& shard) {
  std::vector<KvScale> scales(static_cast<std::size_t>(shard.layers.size()));
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const std::int64_t layer = shard.layers.begin + static_cast<std::int64_t>(i);
    INFERD_ASSIGN(scales[i].k, ReadScale(source, Slot::kKScale, layer));
    INFERD_ASSIGN(scales[i].v, ReadScale(source, Slot::kVScale, layer));
  }
  return scales;
}

std::vector<store::FileRange> RangesOfKvScales(const store::Model& source,
                                               const spec::ShardPlan& shard) {
  std::vector<store::FileRange> ranges;
  for (std::int64_t layer = shard.layers.begin; layer < shard.layers.end; ++layer) {
    for (const Slot slot : {Slot::kKScale, Slot::kVScale}) {
      if (const store::WeightRef* const ref = source.weights.Find(slot, layer)) {
        ranges.push_back(store::RangeOf(*ref->tensor));
      }
    }
  }
  return ranges;
}

}  // namespace inferd::model
