// SPDX-License-Identifier: Apache-2.0
// Weights: which stored bytes fill which place of the decoder. Built once when a model is opened,
// from the family's table of names; fused and stacked tensors come out as row ranges, so nothing
// above knows how a file groups them.
#pragma once

#include "store/tensor_source.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace inferd::store {

/// Places of the decoder that hold weights. Shapes as stored: [rows, cols] = [out, in].
enum class Slot : std::uint8_t {
  // Of the whole model (layer -1).
  kEmbedding,  // [vocab, hidden]
  kHead,       // [vocab, hidden]; the embedding when tied
  kFinalNorm,  // [hidden]
  // Of a layer.
  kAttnNorm,      // [hidden]
  kQ,             // [heads * head_dim, hidden]
  kK,             // [kv_heads * head_dim, hidden]
  kV,             // [kv_heads * head_dim, hidden]
  kO,             // [hidden, heads * head_dim]
  kQBias,         // [heads * head_dim]
  kKBias,         // [kv_heads * head_dim]
  kVBias,         // [kv_heads * head_dim]
  kOBias,         // [hidden]
  kQNorm,         // [head_dim]
  kKNorm,         // [head_dim]
  kSinks,         // [heads]
  kKScale,        // [1], of FP8 pages of K; only where a file has it
  kVScale,        // the same of V
  kQA,            // [q_rank, hidden]; latent attention: then kQ is [heads * head_dim, q_rank]
  kQANorm,        // [q_rank]
  kKvA,           // [kv_rank + rope_dim, hidden]
  kKvANorm,       // [kv_rank]
  kKvB,           // [heads * (nope_dim + value_dim), kv_rank]
  kPostAttnNorm,  // [hidden], sandwich norm
  kFfnNorm,       // [hidden]
  kPostFfnNorm,   // [hidden], sandwich norm
  kGate,          // [ffn, hidden]
  kUp,            // [ffn, hidden]
  kDown,          // [hidden, ffn]
  kGateBias,      // [ffn]
  kUpBias,        // [ffn]
  kDownBias,      // [hidden]
  // Of a mixture-of-experts layer.
  kRouter,            // [experts, hidden]
  kRouterBias,        // [experts]
  kSharedGate,        // [shared_ffn, hidden]
  kSharedUp,          // [shared_ffn, hidden]
  kSharedDown,        // [hidden, shared_ffn]
  kSharedExpertGate,  // [hidden] values, stored as a vector or as one row
  // Of one expert.
  kExpertGate,  // [expert_ffn, hidden]
  kExpertUp,    // [expert_ffn, hidden]
  kExpertDown,  // [hidden, expert_ffn]
};
std::string_view SlotName(Slot slot);

/// Rows [row_begin, row_begin + rows) of a stored tensor seen as a matrix. A vector of n is n rows
/// of 1 column.
struct WeightRef {
  const TensorInfo* tensor = nullptr;
  std::int64_t row_begin = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  DType dtype() const { return tensor->dtype; }
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(rows) * tensor->row_bytes(); }
  /// The same columns of rows [begin, end) of this part.
  WeightRef Rows(std::int64_t begin, std::int64_t end) const {
    return {tensor, row_begin + begin, end - begin, cols};
  }
};

/// Immutable after the model is opened. Every slot that the ModelSpec calls for is there with the
/// right shape; the others are null. The shape of KV scales is for their reader to check.
class Weights {
 public:
  /// layer -1: of the whole model. expert: the kExpert slots only.
  const WeightRef* Find(Slot slot, std::int64_t layer = -1, std::int64_t expert = -1) const;
  /// Bytes of a part, in rows of tensor->row_bytes().
  static std::span<const std::byte> Data(const TensorSource& source, const WeightRef& ref);

  void Set(Slot slot, std::int64_t layer, std::int64_t expert, const WeightRef& ref);
  std::size_t size() const { return refs_.size(); }
  /// Those that fill places, each once.
  std::vector<const TensorInfo*> Tensors() const;

 private:
  std::unordered_map<std::uint64_t, WeightRef> refs_;
};

}  // namespace inferd::store
