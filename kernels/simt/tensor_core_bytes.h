// SPDX-License-Identifier: Apache-2.0
// mma of bytes on the emulated device: m16n8k32, done for a whole warp by the last lane to arrive.
// Integer sums are exact; E4M3 products are added in ascending k, in float.
#pragma once

#include "kernels/simt/engine.h"

#include <cstdint>

namespace inferd::simt {

/// d [16 x 8] += a [16 x 32] b [32 x 8], fragments as m16n8k32 has them: signed bytes.
void MultiplyAddInt8(int (&d)[4],
                     const std::uint32_t (&a)[4],
                     std::uint32_t b0,
                     std::uint32_t b1,
                     const Location& where);

/// The same with E4M3 bytes and float sums.
void MultiplyAddFp8(float (&d)[4],
                    const std::uint32_t (&a)[4],
                    std::uint32_t b0,
                    std::uint32_t b1,
                    const Location& where);

}  // namespace inferd::simt
