// SPDX-License-Identifier: Apache-2.0
// Products with stored weights on the device: y = W x (+ bias), for one matrix and for the experts
// of a mixture. Weights stay as they were stored and are unpacked on the way into the tensor cores;
// activations are floats, multiplied as the sum of two bfloat16 (16 bits of mantissa). k is always
// cut at the same places, whatever m is, so a row's bits depend on nothing but the row.
#pragma once

#include "base/dtype.h"
#include "kernels/cuda/stream.h"

#include <cstddef>
#include <cstdint>

namespace inferd::kernels::cuda {

/// A weight matrix [n, k] in device memory. Types: F32, F16, BF16, F8_E4M3 and the block-quantised
/// ones HasMatMul names, in GGUF's blocks; kI8 and kU8 as described at `scales`.
struct Matrix {
  DType type = DType::kF32;
  const std::byte* rows = nullptr;  // aligned to 16
  std::int64_t row_bytes = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  /// For F8_E4M3 (null: 1) and for the group formats: the value of weight [i, j] is multiplied by
  /// scales[i / scale_rows * scale_ld + j / scale_k]; scale_k is k or more, or a multiple of 32.
  /// kI8: one signed byte per weight. kU8: two 4-bit weights per byte, the even column low, less
  /// zeros (laid out as the scales) or, when that is null, less 8.
  const float* scales = nullptr;
  const std::uint8_t* zeros = nullptr;
  std::int64_t scale_rows = 1;
  std::int64_t scale_k = 1;
  std::int64_t scale_ld = 0;
};

bool HasMatMul(DType type);

/// y[row, 0..n) (+)= W x[row] (+ bias), rows of x and y ldx and ldy floats apart. `add`: into what
/// y holds.
Status MatMul(const Matrix& w,
              const float* x,
              std::int64_t ldx,
              std::int64_t m,
              const float* bias,  // [n] or null
              bool add,
              float* y,
              std::int64_t ldy,
              Stream stream);

/// The experts' products over rows sorted by expert. Expert e has the positions [expert_begin[e],
/// expert_begin[e + 1]); position p takes x row source[p] (null: p) and writes y row p. All experts
/// have the shape of `w`; their rows are at expert_rows[e] (device array), scales and zeros e *
/// scale_stride values after w's.
struct GroupedArgs {
  Matrix w;
  const std::byte* const* expert_rows = nullptr;
  std::int64_t scale_stride = 0;
  int experts = 0;
  const std::int32_t* expert_begin = nullptr;  // [experts + 1]
  const std::int32_t* source = nullptr;
  std::int64_t max_positions = 0;  // bound of the positions in use; fixes the launch shape
  /// Masked, for few rows: the lists of MaskPairs (kernels/moe/moe_cuda.h) take expert_begin's
  /// place, and only experts that have rows get blocks. `experts` counts the slots; slot s has the
  /// positions [s * slot_stride, + slot_count[s]) of expert slot_expert[s], and position p writes y
  /// row target[p]. A row's bits are the same.
  const std::int32_t* slot_expert = nullptr;  // [experts]
  const std::int32_t* slot_count = nullptr;   // [experts]
  const std::int32_t* target = nullptr;       // [experts, slot_stride]
  std::int64_t slot_stride = 0;
  const float* x = nullptr;
  std::int64_t ldx = 0;
  float* y = nullptr;
  std::int64_t ldy = 0;
};
Status GroupedMatMul(const GroupedArgs& args, Stream stream);

}  // namespace inferd::kernels::cuda
