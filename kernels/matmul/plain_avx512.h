// SPDX-License-Identifier: Apache-2.0
// The driver of products with unquantised panels: tiles of 1..12 tokens x 32 rows, one accumulator
// per (row, token), k ascending. Bytes moved: the panel once per 512 rows. A template for the files
// that instantiate it; internal linkage.
//
// Step says what one step of k is:
//   kBytes   of a panel per step
//   kUnits   activations per step; a unit is 4 bytes: a float, or a pair of bf16
//   Add<T>(w, a, lda, f)      one step of 32 rows added to the sums of T tokens
//   AddTail<T>(w, a, lda, f)  the first unit alone of a last step; only where kUnits > 1
#pragma once

#include "kernels/matmul/int8_avx512.h"
#include "kernels/matmul/matmul_avx512.h"

namespace inferd::kernels {
namespace {

// Up to kFewRows rows the panel's way from memory decides: panels go one by one, prefetched.
constexpr std::int64_t kFewRows = 32;
constexpr std::int64_t kGroupPanels = 4;
// Steps of k between two readings of the sums. Few rows: what was asked for ahead is then used by
// every tile while it is in the first-level cache. Many: measured on a Zen 4, 256 steps are 4 to 8
// % faster than 64 there.
constexpr std::int64_t kFewChunkSteps = 64;
constexpr std::int64_t kChunkSteps = 256;
static_assert(kMatMulScratch >= kMatMulRows * kPanelRows * 4 + 12 * 2 * kChunkSteps * 4);

// What a tile asks for at each of its steps: the tiles of a chunk share the bytes of a later one,
// so that memory is busy in all of them. step 0: the line at `next` again and again, which costs
// nothing.
struct Ahead {
  const std::uint8_t* next;
  std::ptrdiff_t step;
};

/// Adds `units` of a to c [tokens, 32]; tokens of a are lda units apart.
template <class Step, int kTokens>
void PlainTile(const std::uint8_t* w,
               std::int64_t units,
               const float* a,
               std::ptrdiff_t lda,
               float* c,
               Ahead ahead) {
  __m512 f[2][kTokens];
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    f[0][t] = _mm512_load_ps(c + t * 32);
    f[1][t] = _mm512_load_ps(c + t * 32 + 16);
  });
  for (std::int64_t steps = units / Step::kUnits; steps > 0; --steps) {
    Prefetch(ahead.next);
    if constexpr (Step::kBytes == 128) {
      Prefetch(ahead.next + ahead.step / 128 * 64);
    }
    ahead.next += ahead.step;
    Step::template Add<kTokens>(w, a, lda, f);
    w += Step::kBytes;
    a += Step::kUnits;
  }
  if constexpr (Step::kUnits > 1) {
    if (units % Step::kUnits != 0) {
      Step::template AddTail<kTokens>(w, a, lda, f);
    }
  }
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    _mm512_store_ps(c + t * 32, f[0][t]);
    _mm512_store_ps(c + t * 32 + 16, f[1][t]);
  });
}

template <class Step>
INFERD_INLINE inline void PlainTileRows(std::int64_t tokens,
                                        const std::uint8_t* w,
                                        std::int64_t units,
                                        const float* a,
                                        std::ptrdiff_t lda,
                                        float* c,
                                        const Ahead& ahead) {
  switch (tokens) {
    case 1:
      return PlainTile<Step, 1>(w, units, a, lda, c, ahead);
    case 2:
      return PlainTile<Step, 2>(w, units, a, lda, c, ahead);
    case 3:
      return PlainTile<Step, 3>(w, units, a, lda, c, ahead);
    case 4:
      return PlainTile<Step, 4>(w, units, a, lda, c, ahead);
    case 5:
      return PlainTile<Step, 5>(w, units, a, lda, c, ahead);
    case 6:
      return PlainTile<Step, 6>(w, units, a, lda, c, ahead);
    case 7:
      return PlainTile<Step, 7>(w, units, a, lda, c, ahead);
    case 8:
      return PlainTile<Step, 8>(w, units, a, lda, c, ahead);
    case 9:
      return PlainTile<Step, 9>(w, units, a, lda, c, ahead);
    case 10:
      return PlainTile<Step, 10>(w, units, a, lda, c, ahead);
    case 11:
      return PlainTile<Step, 11>(w, units, a, lda, c, ahead);
    default:
      return PlainTile<Step, 12>(w, units, a, lda, c, ahead);
  }
}

// Rows of a far apart meet in few sets of the first-level cache: tiles of a large batch are copied
// together.
INFERD_INLINE inline void CopyTile(
    const float* a, std::ptrdiff_t lda, std::int64_t tokens, std::int64_t units, float* out) {
  for (std::int64_t t = 0; t < tokens; ++t, a += lda, out += units) {
    for (std::int64_t i = 0; i < units; i += 16) {
      const __mmask16 lanes = FirstLanes(units - i);
      _mm512_mask_storeu_ps(out + i, lanes, _mm512_maskz_loadu_ps(lanes, a + i));
    }
  }
}

/// The activations of a product [m, units], rows lda units apart.
struct PlainInput {
  const float* a;
  std::ptrdiff_t lda;
  std::int64_t units;
};

// Rows [row0, row0 + m) and panels [p0, p0 + panels). Several panels share the copy of a tile and
// one reading of the activations.
template <class Step>
void PanelGroup(const MatMulArgs& args,
                const PlainInput& in,
                std::int64_t row0,
                std::int64_t m,
                std::int64_t p0,
                std::int64_t panels) {
  const std::int64_t tiles = (m + 11) / 12;
  const std::int64_t steps = m <= kFewRows ? kFewChunkSteps : kChunkSteps;
  const std::int64_t chunk = m <= 12 ? in.units : steps * Step::kUnits;
  float* c = reinterpret_cast<float*>(args.scratch);  // [panels, m, 32]
  float* copy = c + panels * m * kPanelRows;
  __builtin_memset(c, 0, static_cast<std::size_t>(panels * m) * kPanelRows * 4);
  const auto panel = [&](std::int64_t p) INFERD_INLINE {
    return args.panels + static_cast<std::size_t>(p0 + p) * args.panel_bytes;
  };
  for (std::int64_t k = 0; k < in.units; k += chunk) {
    const std::int64_t count = in.units - k < chunk ? in.units - k : chunk;
    for (std::int64_t i = 0; i < tiles; ++i) {
      const std::int64_t t0 = m * i / tiles;
      const std::int64_t tokens = m * (i + 1) / tiles - t0;
      const float* a = in.a + (row0 + t0) * in.lda + k;
      std::ptrdiff_t lda = in.lda;
      if (m > 12) {
        CopyTile(a, lda, tokens, count, copy);
        a = copy;
        lda = count;
      }
      for (std::int64_t p = 0; p < panels; ++p) {
        const std::uint8_t* w = panel(p) + k / Step::kUnits * Step::kBytes;
        Ahead ahead = {w, 0};
        if (m <= kFewRows) {
          ahead.step = (Step::kBytes + tiles - 1) / tiles;
          ahead.next = w + kPrefetchAhead + i * (count / Step::kUnits) * ahead.step;
        }
        PlainTileRows<Step>(tokens, w, count, a, lda, c + (p * m + t0) * kPanelRows, ahead);
      }
    }
  }
  for (std::int64_t i = 0; i < panels * m; ++i) {
    const float* row = c + i * kPanelRows;
    StoreRow(args,
             row0 + i % m,
             (p0 + i / m) * kPanelRows,
             _mm512_load_ps(row),
             _mm512_load_ps(row + 16));
  }
}

/// args.m in 1..kMatMulRows.
template <class Step>
void PlainMatMul(const MatMulArgs& args, const PlainInput& in) {
  const std::int64_t group = args.m <= kFewRows ? 1 : kGroupPanels;
  const std::int64_t most = kMatMulRows / group;
  const std::int64_t blocks = (args.m + most - 1) / most;
  for (std::int64_t p = args.first; p < args.last; p += group) {
    const std::int64_t panels = args.last - p < group ? args.last - p : group;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t row = args.m * block / blocks;
      PanelGroup<Step>(args, in, row, args.m * (block + 1) / blocks - row, p, panels);
    }
  }
}

}  // namespace
}  // namespace inferd::kernels
