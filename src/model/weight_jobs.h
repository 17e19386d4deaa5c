// SPDX-License-Identifier: Apache-2.0
// What a shard needs of the files, place by place: one list for whoever loads it, says which bytes
// that reads, or how many it will take.
#pragma once

#include "inferd/result.h"
#include "model/weights.h"
#include "spec/parallel.h"
#include "store/model.h"
#include "store/weights.h"

#include <cstdint>
#include <vector>

namespace inferd::model {

/// A matrix to be packed: columns [col_begin, col_end) of `ref`.
struct MatrixJob {
  store::WeightRef ref;
  std::int64_t col_begin = 0;
  std::int64_t col_end = 0;
  bool as_row = false;       // a vector of n seen as a matrix [1, n]
  bool of_expert = false;    // multiplied in groups, where all experts share their inputs
  bool keep_mapped = false;  // its pages are read later too
  Matrix* target = nullptr;
  std::int64_t bytes = 0;  // as the tensor's type has them
};

/// Values `range` of a vector, as floats.
struct VectorJob {
  store::WeightRef ref;
  spec::Range range;
  float add = 0;  // to each
  Vector* target = nullptr;
};

/// Rows of kv_b_proj, from which two matrices are made.
struct LatentJob {
  store::WeightRef ref;
  LayerWeights* target = nullptr;
};

struct WeightJobs {
  std::vector<MatrixJob> matrices;
  std::vector<VectorJob> vectors;
  std::vector<LatentJob> latents;
  store::WeightRef embedding;      // tensor null: the shard has none
  bool head_is_embedding = false;  // the same rows are packed as the head
};

/// Sizes the layers of `weights`, into which the targets point. Reads no values. Refuses missing
/// parts, wrong shapes and cuts inside a block, by tensor name.
Result<WeightJobs> ListJobs(const store::Model& source,
                            const spec::ShardPlan& shard,
                            ShardWeights* weights);

}  // namespace inferd::model
