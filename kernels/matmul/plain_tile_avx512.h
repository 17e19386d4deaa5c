// SPDX-License-Identifier: Apache-2.0
// Tiles of products with unquantised panels: 1..12 tokens x 32 rows, or 1..6 tokens x the 64 rows
// of two panels; one accumulator per (row, token), k ascending. Templates for plain_avx512.h;
// internal linkage.
//
// Step says what one step of k is:
//   kBytes   of a panel per step
//   kUnits   activations per step; a unit is 4 bytes: a float, or a pair of bf16
//   kLightTokens  with up to so many tokens a step takes less time than its bytes take to come
//   Operand<kUnit>(w, brick)  16 rows of a step at w for one of its units
//   Spread(a)                 the unit at a on all lanes
//   Add(f, operand, spread)   f and their product
#pragma once

#include "kernels/matmul/int8_avx512.h"

namespace inferd::kernels {
namespace {

// What a tile asks for at each of its steps: the tiles of a chunk share the bytes of a later one,
// so that memory is busy in all of them. step 0: the line at `next` again and again, which costs
// nothing.
struct Ahead {
  const std::uint8_t* next;
  std::ptrdiff_t step;
};

/// Where a tile finds its panels and its sums, which begin at 0 if it is the first of them; a
/// second panel and its sums lie the strides further.
struct TilePlace {
  const std::uint8_t* w;
  std::ptrdiff_t panel_stride;
  float* c;  // [tokens, 32]
  std::ptrdiff_t sum_stride;
  bool first;
};

template <class Step, int kUnit, int kBricks, int kTokens>
INFERD_INLINE inline void AddUnit(const std::uint8_t* w,
                                  std::ptrdiff_t panel_stride,
                                  const float* a,
                                  std::ptrdiff_t lda,
                                  __m512 (&f)[kBricks][kTokens]) {
  __m512 operand[kBricks];
  Unroll<kBricks>([&](auto b) INFERD_INLINE {
    operand[b] = Step::template Operand<kUnit>(w + b / 2 * panel_stride, b % 2);
  });
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    const __m512 x = Step::Spread(a + t * lda + kUnit);
    Unroll<kBricks>([&](auto b) INFERD_INLINE { f[b][t] = Step::Add(f[b][t], operand[b], x); });
  });
}

/// Adds `units` of a to the sums; tokens of a are lda units apart.
template <class Step, int kPanels, int kTokens>
void PlainTile(const TilePlace& at,
               std::int64_t units,
               const float* a,
               std::ptrdiff_t lda,
               const Ahead& ahead) {
  const std::uint8_t* w = at.w;
  const std::ptrdiff_t panel_stride = at.panel_stride;
  float* const c = at.c;
  const std::ptrdiff_t sum_stride = at.sum_stride;
  const std::uint8_t* next = ahead.next;
  const std::ptrdiff_t next_step = ahead.step;
  constexpr int kBricks = 2 * kPanels;
  __m512 f[kBricks][kTokens];
  const auto sums = [&](int b, int t)
                        INFERD_INLINE { return c + b / 2 * sum_stride + t * 32 + b % 2 * 16; };
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    Unroll<kBricks>([&](auto b) INFERD_INLINE {
      f[b][t] = at.first ? _mm512_setzero_ps() : _mm512_load_ps(sums(b, t));
    });
  });
  for (std::int64_t steps = units / Step::kUnits; steps > 0; --steps) {
    if constexpr (kPanels == 1) {
      Prefetch(next);
      if constexpr (Step::kBytes == 128) {
        Prefetch(next + next_step / 128 * 64);
      }
      next += next_step;
    }
    Unroll<Step::kUnits>([&](auto unit) INFERD_INLINE {
      AddUnit<Step, unit, kBricks, kTokens>(w, panel_stride, a, lda, f);
    });
    w += Step::kBytes;
    a += Step::kUnits;
  }
  if constexpr (Step::kUnits > 1) {
    // The last unit alone: what follows the row in `a` is no number of this row.
    if (units % Step::kUnits != 0) {
      AddUnit<Step, 0, kBricks, kTokens>(w, panel_stride, a, lda, f);
    }
  }
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    Unroll<kBricks>([&](auto b) INFERD_INLINE { _mm512_store_ps(sums(b, t), f[b][t]); });
  });
}

template <class Step, int kPanels, int kTokens>
INFERD_INLINE inline void PlainTileRows(std::int64_t tokens,
                                        const TilePlace& at,
                                        std::int64_t units,
                                        const float* a,
                                        std::ptrdiff_t lda,
                                        const Ahead& ahead) {
  if constexpr (kTokens > 1) {
    if (tokens < kTokens) {
      return PlainTileRows<Step, kPanels, kTokens - 1>(tokens, at, units, a, lda, ahead);
    }
  }
  PlainTile<Step, kPanels, kTokens>(at, units, a, lda, ahead);
}

INFERD_INLINE inline void CopyTile(
    const float* a, std::ptrdiff_t lda, std::int64_t tokens, std::int64_t units, float* out) {
  for (std::int64_t t = 0; t < tokens; ++t, a += lda, out += units) {
    std::int64_t i = 0;
    for (; i + 16 <= units; i += 16) {
      _mm512_storeu_ps(out + i, _mm512_loadu_ps(a + i));
    }
    if (i < units) {
      const __mmask16 lanes = FirstLanes(units - i);
      _mm512_mask_storeu_ps(out + i, lanes, _mm512_maskz_loadu_ps(lanes, a + i));
    }
  }
}

}  // namespace
}  // namespace inferd::kernels
