// SPDX-License-Identifier: Apache-2.0
// Row kernels that leave 8-bit activations with one scale per row (dynamic, per token), for
// products with 8-bit weights. The values in front of the rounding have the bits of rows_cuda.h's
// kernels, so a row that is quantised as it is made and one that is quantised later are the same.
#pragma once

#include "kernels/cuda/stream.h"
#include "kernels/kernels.h"

#include <cstdint>

namespace inferd::kernels::cuda {

enum class ByteType : std::uint8_t { kInt8, kFp8 };

/// Rows of bytes: value [row, j] stands for scales[row] times the byte. With `largest` the row's
/// largest size,
///   int8  scale = largest / 127, byte = round(value * (127 / largest)) to nearest, ties to even
///   fp8   scale = largest / 448, byte = E4M3 of value * (448 / largest), likewise
/// A row of zeros has the scale 0; one with no size of 1e-30 or more has bytes of 0. A row with NaN
/// has the scale NaN, one with infinities an infinite one: what is wrong stays visible in the
/// products.
struct QuantisedRows {
  ByteType type = ByteType::kInt8;
  std::uint8_t* values = nullptr;  // [rows, pitch], aligned to 16; zeros past the row's values
  std::int64_t pitch = 0;          // bytes: PitchOf(k)
  float* scales = nullptr;         // [rows]
  float* y = nullptr;              // the same rows in floats, ldy apart; null: not wanted
  std::int64_t ldy = 0;

  static constexpr std::int64_t PitchOf(std::int64_t k) { return (k + 15) / 16 * 16; }
};

/// Rows x [rows, k], ldx floats apart.
Status QuantiseRows(const float* x,
                    std::int64_t ldx,
                    std::int64_t rows,
                    std::int64_t k,
                    const QuantisedRows& out,
                    Stream stream);

/// RmsNorm of rows_cuda.h; with `add` AddRmsNorm. weight null: all ones.
Status RmsNormQuantised(float* x,  // not changed where `add` is null
                        std::int64_t ldx,
                        const float* add,
                        std::int64_t ldadd,
                        const float* weight,
                        float eps,
                        std::int64_t rows,
                        std::int64_t k,
                        const QuantisedRows& out,
                        Stream stream);

/// GateMul of rows_cuda.h.
Status GateMulQuantised(Gate kind,
                        const float* gate,
                        const float* up,
                        std::int64_t ld,
                        std::int64_t rows,
                        std::int64_t n,
                        const QuantisedRows& out,
                        Stream stream);

}  // namespace inferd::kernels::cuda
