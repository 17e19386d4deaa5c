// SPDX-License-Identifier: Apache-2.0
#include "model/kv_cache.h"

#include "base/checked_math.h"
#include "base/error.h"

namespace inferd::model {

ops::KvType KvTypeOf(spec::KvDtype dtype, const spec::ModelSpec& model) {
  switch (spec::ResolvedKvDtype(dtype, model)) {
    case spec::KvDtype::kF32:
      return ops::KvType::kF32;
    case spec::KvDtype::kBf16:
      return ops::KvType::kBf16;
    case spec::KvDtype::kFp8:
      return ops::KvType::kFp8;
    case spec::KvDtype::kInt8:
      return ops::KvType::kInt8;
    default:
      return ops::KvType::kF16;
  }
}

Result<KvCache> KvCache::Make(ops::Device& device,
                              const spec::ModelSpec& model,
                              const spec::ShardPlan& shard,
                              ops::KvType type,
                              std::span<const KvScale> scales,
                              std::int64_t num_pages) {
  if (num_pages <= 0) {
    return InvalidArgument("{} KV pages; at least 1 is needed", num_pages);
  }
  KvCache cache;
  const std::int64_t width = model.latent.used() ? model.latent.width() : model.head_dim;
  const std::size_t layer_bytes = model.latent.used()
                                      ? device.LatentPageBytes(type, width)
                                      : device.KvPageBytes(type, shard.kv_heads.size(), width);
  cache.page_bytes_ = layer_bytes * static_cast<std::size_t>(shard.layers.size());
  cache.num_pages_ = num_pages;
  const auto total = base::CheckedMul(cache.page_bytes_, static_cast<std::uint64_t>(num_pages));
  if (!total) {
    return InvalidArgument(
        "{} KV pages of {} bytes are more than can be addressed", num_pages, cache.page_bytes_);
  }
  INFERD_ASSIGN(cache.memory_, device.Allocate(*total, "the KV cache"));
  for (std::int64_t i = 0; i < shard.layers.size(); ++i) {
    ops::KvLayer layer;
    layer.base = cache.memory_.data() + static_cast<std::size_t>(i) * layer_bytes;
    layer.page_bytes = cache.page_bytes_;
    layer.type = type;
    layer.kv_heads = shard.kv_heads.size();
    layer.head_dim = width;
    layer.kv_rank = model.latent.kv_rank;
    if (!scales.empty() && !model.latent.used()) {  // a latent is neither K nor V: its scale is 1
      layer.k_scale = scales[static_cast<std::size_t>(i)].k;
      layer.v_scale = scales[static_cast<std::size_t>(i)].v;
    }
    cache.layers_.push_back(layer);
  }
  return cache;
}

void KvCache::Zero(ops::Device& device, std::span<const std::int32_t> pages) {
  device.ZeroPages(memory_.data(), page_bytes_, pages);
}

}  // namespace inferd::model
