// SPDX-License-Identifier: Apache-2.0
// Products of 1..6 tokens: quants are decoded in registers and used for all tokens at once. Bytes
// moved: the panel, once. More tokens do not fit: gcc then spills accumulators
// (int8_mid_avx512.h). A template for the two files that instantiate it; internal linkage.
#pragma once

#include "kernels/matmul/int8_avx512.h"

namespace inferd::kernels {
namespace {

/// With up to so many tokens a block takes less time than its bytes take to come; where the CPU
/// streams by itself, lines then need only be touched in ascending order (measured on a Zen 4).
constexpr int TouchTokens(PackForm form) {
  return form == PackForm::kQ8 ? 6 : form == PackForm::kQ4K ? 1 : 2;
}

/// How far ahead of their use lines are touched: not at all, or, of forms whose planes are used
/// first and lie last, a little. Elsewhere software streams.
template <PackForm kForm>
std::ptrdiff_t TouchAhead() {
  constexpr bool kPlanes =
      kForm == PackForm::kQ5 || kForm == PackForm::kQ5K || kForm == PackForm::kQ6K;
  return !CpuStreamsByItself() ? kPrefetchAhead : kPlanes ? 640 : 0;
}

// Calls ask(line) for the lines of a block that step kStep of kSteps asks for: spread, because a
// burst would fill the miss buffers and stall the loads behind it.
template <int kLines, int kSteps, int kStep, class Ask>
INFERD_INLINE inline void AskForShare(const std::uint8_t* block, Ask ask) {
  constexpr int kFrom = kLines * kStep / kSteps;
  constexpr int kTo = kLines * (kStep + 1) / kSteps;
  // Keeps the loads of this step behind those of the last one: the order of lines is what the
  // prefetchers of the CPU follow, and gcc has one of its own.
  asm volatile("" ::: "memory");
  UnrollFrom<kFrom, kTo - kFrom>([&](auto line) INFERD_INLINE { ask(block + line * 64); });
}

/// One panel x kTokens tokens.
template <PackForm kForm, int kTokens>
void SmallPanel(const MatMulArgs& args, const std::uint8_t* panel, std::int64_t row0) {
  // Plain integers: gcc 12 does not carry a constexpr struct into a lambda.
  constexpr int kSuperK = LayoutOf(kForm).super_k;
  constexpr int kSuperHeader = LayoutOf(kForm).super_header;
  constexpr int kBlock = LayoutOf(kForm).block;
  constexpr int kQuants = LayoutOf(kForm).block_header;
  constexpr int kPerSuper = kSuperK / 32;
  constexpr int kHalves = LayoutOf(kForm).mode == ScaleMode::kTwo ? 2 : 1;
  constexpr bool kMin = LayoutOf(kForm).mode == ScaleMode::kOneMin;
  const ActBlock* a = args.a_int8;
  const std::ptrdiff_t lda = args.ld_int8;
  constexpr bool kTouch = kTokens <= TouchTokens(kForm);
  const std::ptrdiff_t touch = TouchAhead<kForm>();

  __m512 f[2][kTokens];
  Unroll<kTokens>([&](auto t) INFERD_INLINE { f[0][t] = f[1][t] = _mm512_setzero_ps(); });
  const std::int64_t supers = args.k / kSuperK;
  for (std::int64_t sb = 0; sb < supers; ++sb) {
    const std::uint8_t* head = panel;
    panel += kSuperHeader;
    for (int j = 0; j < kPerSuper; ++j, panel += kBlock, ++a) {
      const std::uint8_t* q = panel + kQuants;
      Unroll<kHalves>([&](auto half) INFERD_INLINE {
        __m512i acc[2][kTokens];
        Unroll<kTokens>([&](auto t) INFERD_INLINE {
          acc[0][t] = acc[1][t] = Start<kHalves == 2, kMin>(a[t * lda], half);
        });
        Unroll<8 / kHalves>([&](auto step) INFERD_INLINE {
          constexpr int g = step + half * 4;
          AskForShare<kBlock / 64, 8, g>(panel, [&](const std::uint8_t* line) INFERD_INLINE {
            if constexpr (kTouch) {
              Prefetch(line + touch);
            } else {
              AskAhead(line);
            }
          });
          const __m512i w0 = Group<kForm>(q, 0, g);
          const __m512i w1 = Group<kForm>(q, 1, g);
          Unroll<kTokens>([&](auto t) INFERD_INLINE {
            const __m512i x = Broadcast4(a[t * lda].q + 4 * g);
            acc[0][t] = _mm512_dpbusd_epi32(acc[0][t], w0, x);
            acc[1][t] = _mm512_dpbusd_epi32(acc[1][t], w1, x);
          });
        });
        Unroll<2>([&](auto brick) INFERD_INLINE {
          const __m512 dw = BrickScale<kForm>(head, panel, brick, half);
          __m512 dm = _mm512_setzero_ps();
          if constexpr (kMin) {
            dm = BrickMin(head, panel, brick);
          }
          Unroll<kTokens>([&](auto t) INFERD_INLINE {
            f[brick][t] = Step(acc[brick][t], dw, a[t * lda].d, f[brick][t]);
            if constexpr (kMin) {
              f[brick][t] = _mm512_fmadd_ps(dm, _mm512_set1_ps(a[t * lda].s), f[brick][t]);
            }
          });
        });
      });
    }
  }
  const __m512 scale = _mm512_set1_ps(OutScale(kForm));
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    StoreRow(args, t, row0, _mm512_mul_ps(f[0][t], scale), _mm512_mul_ps(f[1][t], scale));
  });
}

template <PackForm kForm, int kTokens>
void SmallPanels(const MatMulArgs& args) {
  for (std::int64_t p = args.first; p < args.last; ++p) {
    SmallPanel<kForm, kTokens>(
        args, args.panels + static_cast<std::size_t>(p) * args.panel_bytes, p * kPanelRows);
  }
}

/// args.m in 1..6.
template <PackForm kForm>
void SmallRows(const MatMulArgs& args) {
  switch (args.m) {
    case 1:
      return SmallPanels<kForm, 1>(args);
    case 2:
      return SmallPanels<kForm, 2>(args);
    case 3:
      return SmallPanels<kForm, 3>(args);
    case 4:
      return SmallPanels<kForm, 4>(args);
    case 5:
      return SmallPanels<kForm, 5>(args);
    default:
      return SmallPanels<kForm, 6>(args);
  }
}

}  // namespace
}  // namespace inferd::kernels
