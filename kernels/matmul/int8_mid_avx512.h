// SPDX-License-Identifier: Apache-2.0
// Products of 7 tokens to some dozens: the 16 rows x 32 k of a brick's block are decoded to eight
// registers, which then meet every token in turn; the sums wait in the first-level cache. A token's
// arithmetic is that of the other families, in the same order. Bytes moved: the panel, once. A
// template for the two files that instantiate it; internal linkage.
#pragma once

#include "kernels/matmul/int8_avx512.h"

namespace inferd::kernels {
namespace {

/// The scales of 16 rows in one block, and its quants as vpdpbusd takes them.
template <int kHalves>
struct Brick {
  __m512i w[8];
  __m512 d[kHalves];
  __m512 min;
};

/// Adds a block of `kTokens` tokens at `a`, lda apart, to their sums [tokens, 16].
template <bool kMin, int kHalves, int kTokens>
INFERD_INLINE inline void BrickTokens(const Brick<kHalves>& brick,
                                      const ActBlock* a,
                                      std::ptrdiff_t lda,
                                      float* sums) {
  __m512i acc[kHalves][kTokens];
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    Unroll<kHalves>([&](auto half) INFERD_INLINE {
      acc[half][t] = Start<kHalves == 2, kMin>(a[t * lda], half);
    });
  });
  Unroll<8>([&](auto g) INFERD_INLINE {
    Unroll<kTokens>([&](auto t) INFERD_INLINE {
      __m512i& sum = acc[g * kHalves / 8][t];
      sum = _mm512_dpbusd_epi32(sum, brick.w[g], Broadcast4(a[t * lda].q + 4 * g));
    });
  });
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    const ActBlock& x = a[t * lda];
    __m512 f = _mm512_load_ps(sums + t * 16);
    Unroll<kHalves>([&](auto half)
                        INFERD_INLINE { f = Step(acc[half][t], brick.d[half], x.d, f); });
    if constexpr (kMin) {
      f = _mm512_fmadd_ps(brick.min, _mm512_set1_ps(x.s), f);
    }
    _mm512_store_ps(sums + t * 16, f);
  });
}

/// One panel x args.m tokens.
template <PackForm kForm>
void MidPanel(const MatMulArgs& args, const std::uint8_t* panel, std::int64_t row0) {
  // Plain integers: gcc 12 does not carry a constexpr struct into a lambda.
  constexpr int kSuperK = LayoutOf(kForm).super_k;
  constexpr int kSuperHeader = LayoutOf(kForm).super_header;
  constexpr int kBlock = LayoutOf(kForm).block;
  constexpr int kQuants = LayoutOf(kForm).block_header;
  constexpr int kPerSuper = kSuperK / 32;
  constexpr int kHalves = LayoutOf(kForm).mode == ScaleMode::kTwo ? 2 : 1;
  constexpr bool kMin = LayoutOf(kForm).mode == ScaleMode::kOneMin;
  constexpr int kTogether = 4;  // as many sums as the latency of vpdpbusd asks for
  constexpr int kLines = (kBlock + 63) / 64;
  const std::int64_t m = args.m;
  const std::int64_t turns = m < kTogether ? 1 : m / kTogether;
  const auto lines_each = static_cast<int>((kLines / 2 + turns) / turns);
  const std::ptrdiff_t lda = args.ld_int8;
  const ActBlock* a = args.a_int8;
  float* const sums = reinterpret_cast<float*>(args.scratch);  // [brick][token][16]
  __builtin_memset(sums, 0, static_cast<std::size_t>(m) * kPanelRows * 4);
  const std::int64_t supers = args.k / kSuperK;
  for (std::int64_t sb = 0; sb < supers; ++sb) {
    const std::uint8_t* head = panel;
    panel += kSuperHeader;
    for (int j = 0; j < kPerSuper; ++j, panel += kBlock, ++a) {
      Unroll<2>([&](auto b) INFERD_INLINE {
        // Spread over the tokens: a burst would fill the miss buffers and stall the loads behind
        // it.
        const std::uint8_t* ahead = panel + kLines * b / 2 * 64;
        const std::uint8_t* const ahead_end = panel + kLines * (b + 1) / 2 * 64;
        Brick<kHalves> brick;
        Unroll<8>([&](auto g) INFERD_INLINE { brick.w[g] = Group<kForm>(panel + kQuants, b, g); });
        Unroll<kHalves>([&](auto half) INFERD_INLINE {
          brick.d[half] = BrickScale<kForm>(head, panel, b, half);
        });
        if constexpr (kMin) {
          brick.min = BrickMin(head, panel, b);
        }
        float* f = sums + b * m * 16;
        const ActBlock* x = a;
        std::int64_t t = 0;
        for (; t + kTogether <= m; t += kTogether, x += kTogether * lda, f += kTogether * 16) {
          for (int line = 0; line < lines_each && ahead < ahead_end; ++line, ahead += 64) {
            AskAhead(ahead);
          }
          BrickTokens<kMin, kHalves, kTogether>(brick, x, lda, f);
        }
        for (; t < m; ++t, x += lda, f += 16) {
          BrickTokens<kMin, kHalves, 1>(brick, x, lda, f);
        }
      });
    }
  }
  const __m512 scale = _mm512_set1_ps(OutScale(kForm));
  for (std::int64_t t = 0; t < m; ++t) {
    const float* f = sums + t * 16;
    StoreRow(args,
             t,
             row0,
             _mm512_mul_ps(_mm512_load_ps(f), scale),
             _mm512_mul_ps(_mm512_load_ps(f + m * 16), scale));
  }
}

/// args.m in 1..kMatMulRows.
template <PackForm kForm>
void MidRows(const MatMulArgs& args) {
  for (std::int64_t p = args.first; p < args.last; ++p) {
    MidPanel<kForm>(
        args, args.panels + static_cast<std::size_t>(p) * args.panel_bytes, p * kPanelRows);
  }
}

}  // namespace
}  // namespace inferd::kernels
