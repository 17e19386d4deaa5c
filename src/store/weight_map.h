// SPDX-License-Identifier: Apache-2.0
// From a family's table of names to Weights: every slot that the spec calls for is filled exactly
// once, with the right shape, and no tensor of the files is left over.
#pragma once

#include "inferd/result.h"
#include "spec/model_spec.h"
#include "spec/parallel.h"
#include "store/families.h"
#include "store/tensor_source.h"
#include "store/weights.h"

namespace inferd::store {

enum class FileFormat : std::uint8_t { kSafetensors, kGguf };

/// Refuses an absent tensor, a wrong shape, a type that weights cannot have, and a tensor without a
/// place in the decoder, each by name.
Result<Weights> MapWeights(const spec::ModelSpec& spec,
                           const Family& family,
                           FileFormat format,
                           const TensorSource& tensors);

/// Largest block along each input dimension that is cut, over all layers.
spec::CutGranularity CutOf(const spec::ModelSpec& spec, const Weights& weights);

/// Stored type that most bytes of the layers have.
DType MainDType(const spec::ModelSpec& spec, const Weights& weights);

}  // namespace inferd::store
