// SPDX-License-Identifier: Apache-2.0
// Cosine and sine tables of the rotary embeddings of a model, made once at load for every position
// it may see.
#pragma once

#include "inferd/result.h"
#include "ops/device.h"
#include "spec/model_spec.h"

#include <cstdint>
#include <vector>

namespace inferd::model {

/// Angle per position of each rotated pair, and the factor on cos and sin.
struct RopeFrequencies {
  std::vector<float> inverse;  // [rotary_dim / 2]
  float scale = 1;
};

/// The formulas of `transformers`. The kinds that depend on the length (dynamic, longrope) use
/// max_model_len for all sequences: a row's angles must not depend on how long it becomes, or
/// cached keys would not fit.
RopeFrequencies MakeRopeFrequencies(const spec::RopeSpec& rope, std::int64_t max_model_len);

class RopeTables {
 public:
  /// One table per entry of model.ropes, [max_model_len, rotary_dim / 2].
  static Result<RopeTables> Make(const spec::ModelSpec& model,
                                 std::int64_t max_model_len,
                                 ops::Device& device);

  const ops::RopeTable& table(int rope) const { return tables_[static_cast<std::size_t>(rope)]; }
  std::int64_t bytes() const;

 private:
  std::vector<ops::Memory> memory_;
  std::vector<ops::RopeTable> tables_;
};

}  // namespace inferd::model
