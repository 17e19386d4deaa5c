// SPDX-License-Identifier: Apache-2.0
// `--quantization NAME`: what the user says about the weights' format, or wants done to it.
#pragma once

#include "inferd/result.h"
#include "spec/model_spec.h"
#include "store/tensor_source.h"
#include "store/weights.h"

#include <string>
#include <string_view>

namespace inferd::store {

struct Quantization {
  std::string_view name;  // of --quantization
  /// The device multiplies E4M3 values with scales, and int8 ones where inputs are rounded per
  /// token: they stay so. Else E4M3 times its scale is rounded to BF16, and int8 becomes blocks
  /// of 32.
  bool keep_fp8 = false;
};

/// int8 (Q8_0), int4 (Q4_0) and fp8 (E4M3 with a scale per output): the projections of all layers,
/// experts included, that are stored as F32, F16 or BF16 are rounded as they are read; embedding,
/// head, router and norms stay. The name of a format of files (awq, gptq, fp8, compressed-tensors,
/// gguf, as vLLM spells them): refuses files of another one. Empty: nothing. `stored` is what the
/// files are, empty when they are not quantised. Refuses other names, and the first three for a
/// model that has nothing to round.
Result<> ApplyQuantization(const Quantization& quantization,
                           std::string_view stored,
                           const spec::ModelSpec& spec,
                           const Weights& weights,
                           TensorSource* tensors);

}  // namespace inferd::store
