// SPDX-License-Identifier: Apache-2.0
// How many parameters of which kind a shard holds: the one count behind the memory ledger, the
// balance of stages and the cost model.
#pragma once

#include "spec/model_spec.h"
#include "spec/parallel.h"

#include <cstdint>

namespace inferd::spec {

/// Parameters by class. Router weights, biases and norms are small and counted as `other`.
struct WeightClasses {
  std::int64_t embedding = 0;
  std::int64_t attention = 0;  // q, k, v, o
  std::int64_t ffn = 0;        // gate, up, down of dense layers, and of shared experts
  std::int64_t experts = 0;    // gate, up, down of the experts held
  std::int64_t head = 0;       // 0 where the embedding serves as head
  std::int64_t other = 0;

  std::int64_t total() const { return embedding + attention + ffn + experts + head + other; }
};

/// Of one layer of the whole model.
WeightClasses LayerWeights(const ModelSpec& model, std::int64_t layer);
/// Of one layer as a shard holds it.
WeightClasses LayerWeights(const ModelSpec& model, const ShardPlan& shard, std::int64_t layer);
/// Of all a shard holds.
WeightClasses ShardWeights(const ModelSpec& model, const ShardPlan& shard);

}  // namespace inferd::spec
