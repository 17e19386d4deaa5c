// SPDX-License-Identifier: Apache-2.0
// The end of an AVX2 product: a panel's finished sums to y. Internal linkage.
#pragma once

#include "kernels/kernels.h"
#include "kernels/simd_avx2.h"

namespace inferd::kernels {
namespace {

/// y = c * scale (+ bias) for the m rows [m, 32] of panel p.
inline void StorePanel(const MatMulArgs& args, std::int64_t p, const float* c, float scale) {
  const std::int64_t row0 = p * kPanelRows;
  for (std::int64_t t = 0; t < args.m; ++t) {
    for (int octet = 0; octet < 4; ++octet) {
      const std::int64_t row = row0 + octet * 8;
      const __m256i valid = FirstLanes(args.n - row);
      __m256 v =
          _mm256_mul_ps(_mm256_loadu_ps(c + t * kPanelRows + octet * 8), _mm256_set1_ps(scale));
      if (args.bias != nullptr && row < args.n) {
        v = _mm256_add_ps(v, _mm256_maskload_ps(args.bias + row, valid));
      }
      if (row < args.n) {
        _mm256_maskstore_ps(args.y + t * args.ldy + row, valid, v);
      }
    }
  }
}

}  // namespace
}  // namespace inferd::kernels
