// SPDX-License-Identifier: Apache-2.0
// Inputs of products in the form that a product wants them, where that is not rows of floats in the
// model's order: as sums of 16-bit numbers for a library's kernels, and in a matrix' own order of
// columns. All pointers are device memory; a row's result depends on nothing but the row.
#pragma once

#include "base/dtype.h"
#include "kernels/cuda/stream.h"

#include <cstdint>

namespace inferd::kernels::cuda {

/// The second F16 term is stored so many times larger: that of a small value would be denormal.
inline constexpr float kSecondHalf = 0x1p11F;

/// Row r of term t at out + t * term_stride + r * ldo: F16 or BF16 values whose sum over the terms
/// (1 or 2; the second one of F16 divided by kSecondHalf) is x[r, 0..k) * scale up to the last
/// term's rounding, 8 bits of mantissa per BF16 and 11 per F16 term. F16 saturates at 65504. What
/// is between k and ldo stays as it was.
Status SplitRows(DType type,
                 const float* x,
                 std::int64_t ldx,
                 std::int64_t rows,
                 std::int64_t k,
                 float scale,
                 int terms,
                 std::uint16_t* out,
                 std::int64_t ldo,
                 std::int64_t term_stride,
                 Stream stream);

/// y[r, j] = x[r, columns[j]] for j in [0, n), 0 where columns[j] is below 0.
Status GatherColumns(const float* x,
                     std::int64_t ldx,
                     const std::int32_t* columns,
                     std::int64_t rows,
                     std::int64_t n,
                     float* y,
                     std::int64_t ldy,
                     Stream stream);

}  // namespace inferd::kernels::cuda
