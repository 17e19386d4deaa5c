// SPDX-License-Identifier: Apache-2.0
// KvCache: the bytes behind the engine's page numbers, for the layers and KV heads of one shard.
// Page-major: the share of all layers in one page lies together, so that freshening (and later
// moving) a page is one range.
#pragma once

#include "inferd/result.h"
#include "model/kv_scales.h"
#include "ops/device.h"
#include "spec/kv_dtype.h"
#include "spec/parallel.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace inferd::model {

/// The type of the pages for a setting.
ops::KvType KvTypeOf(spec::KvDtype dtype, const spec::ModelSpec& model);

class KvCache {
 public:
  /// `scales`: of the shard's layers; empty: 1.
  static Result<KvCache> Make(ops::Device& device,
                              const spec::ModelSpec& model,
                              const spec::ShardPlan& shard,
                              ops::KvType type,
                              std::span<const KvScale> scales,
                              std::int64_t num_pages);

  /// `layer` counts from the first layer of the shard.
  const ops::KvLayer& layer(std::int64_t layer) const {
    return layers_[static_cast<std::size_t>(layer)];
  }
  std::int64_t num_pages() const { return num_pages_; }
  std::int64_t bytes() const { return static_cast<std::int64_t>(memory_.bytes()); }

  /// Zeroes pages before use: what an earlier sequence left there (NaN included) must not reach
  /// masked arithmetic. Precondition: 0 <= page < num_pages().
  void Zero(ops::Device& device, std::span<const std::int32_t> pages);

 private:
  ops::Memory memory_;
  std::size_t page_bytes_ = 0;  // of all layers
  std::int64_t num_pages_ = 0;
  std::vector<ops::KvLayer> layers_;
};

}  // namespace inferd::model
