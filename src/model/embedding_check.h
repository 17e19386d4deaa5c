// SPDX-License-Identifier: Apache-2.0
// The embedding is read in place; a bad value in it must be refused as in any packed tensor.
#pragma once

#include "inferd/result.h"
#include "model/weights.h"

namespace inferd::model {

/// Refuses NaN and infinities in the rows `ref` of the embedding, of which `rows` is the device's
/// view, and gives the mapped pages back.
Result<> CheckEmbedding(const store::Model& source,
                        const store::WeightRef& ref,
                        const EmbeddingRows& rows,
                        ops::Device& device);

}  // namespace inferd::model
