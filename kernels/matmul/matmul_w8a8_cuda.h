// SPDX-License-Identifier: Apache-2.0
// Products of 8-bit weights with 8-bit activations on the device: y = W x (+ bias), as checkpoints
// of the scheme W8A8 define them. Weights have a scale per output, activations one per row, which
// rows/quantised_rows_cuda.h makes. int8 sums are exact integers. E4M3 sums are floats, cut at the
// same places whatever m is, so in both a row's bits depend on nothing but the row. For devices
// before sm_89 E4M3 becomes half, which holds each of its values.
#pragma once

#include "kernels/cuda/stream.h"
#include "kernels/rows/quantised_rows_cuda.h"

#include <cstddef>
#include <cstdint>

namespace inferd::kernels::cuda {

/// y[row, i] = (sum over j of W[i, j] x[row, j]) * x.scales[row] * w_scales[i] (+ bias[i]).
struct MatMulW8A8Args {
  const std::byte* w = nullptr;  // [n, k] of x.type, row after row; aligned to 16
  std::int64_t n = 0;
  std::int64_t k = 0;               // int8: at most kMostInt8Columns
  const float* w_scales = nullptr;  // [n]
  QuantisedRows x;                  // [m, k]
  std::int64_t m = 0;
  const float* bias = nullptr;  // [n] or null
  float* y = nullptr;           // [m, n], rows ldy floats apart
  std::int64_t ldy = 0;

  /// So many products of -128 and -128 still fit an int32.
  static constexpr std::int64_t kMostInt8Columns = 131'071;
};
Status MatMulW8A8(const MatMulW8A8Args& args, Stream stream);

}  // namespace inferd::kernels::cuda
