// SPDX-License-Identifier: Apache-2.0
// ShardWeights: the slices of a model that one rank holds, packed for its device. Filled once at
// load, immutable after.
#pragma once

#include "inferd/result.h"
#include "ops/device.h"
#include "ops/packed_bytes.h"
#include "spec/parallel.h"
#include "store/model.h"
#include "store/partial_model.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace inferd::model {

using Matrix = std::unique_ptr<ops::PackedMatrix>;

/// Norm weights or biases: on the host, and on the device where that has its own memory.
class Vector {
 public:
  Vector() = default;
  static Result<Vector> Make(std::vector<float> values, ops::Device& device);

  bool empty() const { return host_.empty(); }
  std::size_t size() const { return host_.size(); }
  std::span<const float> host() const { return host_; }
  /// On the device; null when empty.
  const float* data() const {
    return device_.data() != nullptr ? device_.floats() : (empty() ? nullptr : host_.data());
  }

 private:
  std::vector<float> host_;
  ops::Memory device_;
};

/// Local sizes: q, kv = heads of this shard * head_dim; out = spec::HiddenRows; ffn, expert_ffn,
/// shared_ffn = this shard's columns. What the ModelSpec does not call for is empty or null.
struct LayerWeights {
  Vector attn_norm, post_attn_norm, ffn_norm, post_ffn_norm;  // [hidden]
  Vector q_norm, k_norm;                                      // [head_dim]
  Vector sinks;                                               // [q heads]
  Vector q_bias, k_bias, v_bias, gate_bias, up_bias;          // rows of their matrix
  Vector o_bias, down_bias;                                   // [out]
  Matrix q, k, v;  // [q, hidden], [kv, hidden], [kv, hidden]
  Matrix o;        // [out, all heads * head_dim]
  // Latent attention; q is [q, q_rank] where there is q_a, k and v are null.
  Vector q_a_norm, kv_a_norm;     // [q_rank], [kv_rank]
  Matrix q_a, kv_a;               // [q_rank, hidden], [kv_rank + rope_dim, hidden]
  Matrix k_up;                    // [q heads * kv_rank, nope_dim]: a query into the latent space
  Matrix v_up;                    // [q heads * value_dim, kv_rank]: out of it
  Matrix gate, up;                // [ffn, hidden]
  Matrix down;                    // [out, ffn of the model]
  Matrix router;                  // [experts of the model, hidden], whole on every rank
  Vector router_bias;             // [experts of the model]
  Matrix shared_gate, shared_up;  // [shared_ffn, hidden]
  Matrix shared_down;             // [hidden, shared_ffn]
  Matrix shared_expert_gate;      // [1, hidden]
  std::vector<Matrix> experts;    // owner of the three lists below
  /// By local expert: [expert_ffn, hidden], [expert_ffn, hidden], [hidden, expert_ffn].
  std::vector<const ops::PackedMatrix*> expert_gate, expert_up, expert_down;
};

/// Rows of the embedding as stored: read in place from the mapped file, or the device's copy.
struct EmbeddingRows {
  ops::EmbeddingTable table;  // [count, hidden]
  std::int64_t count = 0;
  std::int64_t first_id = 0;
};

struct ShardWeights {
  EmbeddingRows embedding;           // first stage
  Vector final_norm;                 // [hidden], last stage
  Matrix head;                       // [vocab slice, hidden], last stage
  std::vector<LayerWeights> layers;  // of this stage
  std::int64_t bytes = 0;            // packed matrices and float vectors
};

struct LoadWeightsOptions {
  int threads = 1;
  std::function<void(std::int64_t done_bytes, std::int64_t total_bytes)> progress;
};

/// Which bytes of the files LoadWeights reads for a shard; nothing is read yet. Its errors are
/// those of LoadWeights that need no values.
Result<std::vector<store::FileRange>> RangesOfShard(const store::Model& source,
                                                    const spec::ShardPlan& shard);

/// ShardWeights::bytes of a shard on such a device, and the stored rows of an embedding that it
/// reads in place: what the memory ledger counts as weights. Of the values only the order of
/// quantised groups is read. Its errors are those of LoadWeights that need no values.
Result<std::int64_t> WeightBytesOfShard(const store::Model& source,
                                        const spec::ShardPlan& shard,
                                        ops::DeviceClass device);

/// Reads only the shard's slices and gives the mapped pages back as it goes. `source` must outlive
/// the result when the shard has the embedding. Refuses NaN, infinities, missing parts, wrong
/// shapes and cuts inside a block, by tensor name.
Result<ShardWeights> LoadWeights(const store::Model& source,
                                 const spec::ShardPlan& shard,
                                 ops::Device& device,
                                 const LoadWeightsOptions& options);

}  // namespace inferd::model
