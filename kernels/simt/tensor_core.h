// SPDX-License-Identifier: Apache-2.0
// ldmatrix and mma of the emulated device: the fragment layouts of the PTX manual, done for a whole
// warp by the last lane to arrive. Products of one mma are added in ascending k, in float.
#pragma once

#include "kernels/simt/engine.h"

#include <cstdint>

namespace inferd::simt {

/// Four 8x8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8.
void LoadMatrix(std::uint32_t (&fragment)[4],
                const void* row,
                bool transposed,
                const Location& where);

enum class HalfKind : std::uint8_t { kBf16, kF16 };

/// d [16 x 8] += a [16 x 16] b [16 x 8], fragments as m16n8k16 has them.
void MultiplyAdd(HalfKind kind,
                 float (&d)[4],
                 const std::uint32_t (&a)[4],
                 std::uint32_t b0,
                 std::uint32_t b1,
                 const Location& where);

}  // namespace inferd::simt
