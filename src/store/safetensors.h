// SPDX-License-Identifier: Apache-2.0
// Safetensors files, single or sharded: headers read without trusting them.
#pragma once

#include "inferd/result.h"
#include "store/quantised.h"
#include "store/tensor_source.h"

#include <optional>
#include <string>

namespace inferd::store {

/// The weights of a model folder: model.safetensors, or the shards that
/// model.safetensors.index.json names, or a complete set of NAME-0000i-of-0000n.safetensors.
/// Refuses absent shards (listing them), tensors that the index places elsewhere, ranges that
/// overlap, leave gaps or do not match the shape. With `quant`, the parts of quantised layers are
/// folded.
Result<TensorSource> OpenSafetensors(const std::string& folder,
                                     const std::optional<QuantConfig>& quant = {});

}  // namespace inferd::store
