// SPDX-License-Identifier: Apache-2.0
// The driver of products with unquantised panels. Bytes moved: the panel once per 512 rows. A
// template for the files that instantiate it, with a Step of plain_tile_avx512.h; internal linkage.
#pragma once

#include "kernels/matmul/matmul_avx512.h"
#include "kernels/matmul/plain_tile_avx512.h"

namespace inferd::kernels {
namespace {

constexpr std::int64_t kGroupPanels = 8;
// Tokens of a tile. On a Zen 4 two panels x 6 tokens read 10 operands for 24 multiplications, one
// panel x 12 tokens reads 14 and reaches 6 % less of the peak; the latter has fewer bytes of a
// panel on their way from memory at once.
constexpr int kFewTile = 12;
constexpr int kPairTile = 6;
// Steps of k between two readings of the sums. Few rows: what was asked for ahead is then used by
// every tile while it is in the first-level cache. Many: measured on a Zen 4, 256 steps are 4 to 8
// % faster than 64 there.
constexpr std::int64_t kFewChunkSteps = 64;
constexpr std::int64_t kChunkSteps = 256;
static_assert(kMatMulScratch >= kMatMulSums * kPanelRows * 4 + 12 * 2 * kChunkSteps * 4);

// Whether the rows of a tile, lda units apart, lie in different sets of the first-level cache.
// Where they do not they are copied together, which costs a tenth of a product of few panels.
INFERD_INLINE inline bool IsSpread(std::ptrdiff_t lda) {
  constexpr std::ptrdiff_t kSetUnits = 4096 / 4;
  return lda % kSetUnits >= kSetUnits / 8 && lda % kSetUnits <= kSetUnits * 7 / 8;
}

INFERD_INLINE inline void AskForLines(const std::uint8_t* at,
                                      std::int64_t first,
                                      std::int64_t last) {
  for (std::int64_t line = first; line < last; ++line) {
    PrefetchSecond(at + line * 64);
  }
}

// Asks for what CopyTile will read. Rows are too short a run for the hardware prefetchers, and
// those of a large batch lie in the last-level cache.
INFERD_INLINE inline void AskForTile(const float* a,
                                     std::ptrdiff_t lda,
                                     std::int64_t tokens,
                                     std::int64_t units) {
  for (std::int64_t t = 0; t < tokens; ++t, a += lda) {
    for (std::int64_t i = 0; i < units; i += 16) {
      PrefetchSecond(a + i);
    }
  }
}

/// The activations of a product [m, units], rows lda units apart.
struct PlainInput {
  const float* a;
  std::ptrdiff_t lda;
  std::int64_t units;
};

// Sums [panels, m, 32] of rows from row0 and panels from p0 on, with bias.
INFERD_INLINE inline void StoreSums(const MatMulArgs& args,
                                    const float* sums,
                                    std::int64_t row0,
                                    std::int64_t m,
                                    std::int64_t p0,
                                    std::int64_t panels) {
  for (std::int64_t p = p0; p < p0 + panels; ++p) {
    for (std::int64_t t = row0; t < row0 + m; ++t, sums += kPanelRows) {
      StoreRow(args, t, p * kPanelRows, _mm512_load_ps(sums), _mm512_load_ps(sums + 16));
    }
  }
}

// Up to kMatMulFewRows rows and one panel, which comes from memory.
template <class Step>
void StreamPanel(const MatMulArgs& args, const PlainInput& in, std::int64_t p) {
  const std::int64_t m = args.m;
  const std::int64_t tiles = (m + kFewTile - 1) / kFewTile;
  const std::int64_t chunk = tiles == 1 ? in.units : kFewChunkSteps * Step::kUnits;
  const std::int64_t share = (Step::kBytes + tiles - 1) / tiles;
  float* c = reinterpret_cast<float*>(args.scratch);
  float* copy = c + m * kPanelRows;
  // As in int8_small_avx512.h. A single tile reads the panel line after line.
  static_assert(Step::kLightTokens <= kFewTile);
  const std::ptrdiff_t far = m <= Step::kLightTokens && CpuStreamsByItself() ? 0 : kPrefetchAhead;
  TilePlace at = {args.panels + static_cast<std::size_t>(p) * args.panel_bytes, 0, c, 0, true};
  for (std::int64_t k = 0; k < in.units; k += chunk) {
    const std::int64_t count = in.units - k < chunk ? in.units - k : chunk;
    for (std::int64_t i = 0; i < tiles; ++i) {
      const std::int64_t t0 = m * i / tiles;
      const std::int64_t tokens = m * (i + 1) / tiles - t0;
      const float* a = in.a + t0 * in.lda + k;
      std::ptrdiff_t lda = in.lda;
      if (tiles > 1 && !IsSpread(in.lda)) {
        CopyTile(a, lda, tokens, count, copy);
        a = copy;
        lda = count;
      }
      at.c = c + t0 * kPanelRows;
      const Ahead ahead = {at.w + far + i * (count / Step::kUnits) * share, share};
      PlainTileRows<Step, 1, kFewTile>(tokens, at, count, a, lda, ahead);
    }
    at.w += chunk / Step::kUnits * Step::kBytes;
    at.first = false;
  }
  StoreSums(args, c, 0, m, p, 1);
}

// Rows [row0, row0 + m) and panels [p0, p0 + panels), which share the copy of a tile. What the next
// tile and the next chunk need is asked for into the second-level cache meanwhile.
template <class Step>
void PanelGroup(const MatMulArgs& args,
                const PlainInput& in,
                std::int64_t row0,
                std::int64_t m,
                std::int64_t p0,
                std::int64_t panels) {
  constexpr std::int64_t kEven = 16 * Step::kUnits;  // of a chunk: whole lines
  const std::int64_t tiles = (m + kPairTile - 1) / kPairTile;
  const auto stride = static_cast<std::ptrdiff_t>(args.panel_bytes);
  constexpr std::int64_t kMostUnits = kChunkSteps * Step::kUnits;
  const std::int64_t chunks = (in.units + kMostUnits - 1) / kMostUnits;
  const std::int64_t chunk = (in.units / chunks + kEven - 1) / kEven * kEven;
  const std::int64_t chunk_bytes = chunk / Step::kUnits * Step::kBytes;
  float* c = reinterpret_cast<float*>(args.scratch);
  float* copy = c + panels * m * kPanelRows;
  for (std::int64_t k = 0; k < in.units; k += chunk) {
    const std::int64_t count = in.units - k < chunk ? in.units - k : chunk;
    const std::uint8_t* const w = args.panels + p0 * stride + k / Step::kUnits * Step::kBytes;
    // After the last chunk of these panels comes the first one of those behind them.
    const std::ptrdiff_t next = count == chunk && k + chunk < in.units
                                    ? chunk_bytes
                                    : panels * stride - k / Step::kUnits * Step::kBytes;
    for (std::int64_t i = 0; i < tiles; ++i) {
      const std::int64_t t0 = m * i / tiles;
      const std::int64_t t1 = m * (i + 1) / tiles;
      const float* a = in.a + (row0 + t0) * in.lda + k;
      std::ptrdiff_t lda = in.lda;
      if (!IsSpread(in.lda)) {
        CopyTile(a, lda, t1 - t0, count, copy);
        a = copy;
        lda = count;
      }
      if (i + 1 < tiles) {
        AskForTile(in.a + (row0 + t1) * in.lda + k, in.lda, m * (i + 2) / tiles - t1, count);
      }
      const std::int64_t line = chunk_bytes / 64 * i / tiles;
      const std::int64_t last_line = chunk_bytes / 64 * (i + 1) / tiles;
      for (std::int64_t p = 0; p < panels; p += 2) {
        const TilePlace at = {
            w + p * stride, stride, c + (p * m + t0) * kPanelRows, m * kPanelRows, k == 0};
        AskForLines(at.w + next, line, last_line);
        if (p + 1 < panels) {
          AskForLines(at.w + stride + next, line, last_line);
          PlainTileRows<Step, 2, kPairTile>(t1 - t0, at, count, a, lda, {});
        } else {
          PlainTileRows<Step, 1, kPairTile>(t1 - t0, at, count, a, lda, {at.w, 0});
        }
      }
    }
  }
  StoreSums(args, c, row0, m, p0, panels);
}

/// args.m in 1..kMatMulRows.
template <class Step>
void PlainMatMul(const MatMulArgs& args, const PlainInput& in) {
  if (!TakesPairs(args)) {
    for (std::int64_t p = args.first; p < args.last; ++p) {
      StreamPanel<Step>(args, in, p);
    }
    return;
  }
  constexpr std::int64_t kMost = kMatMulSums / kGroupPanels;
  const std::int64_t blocks = (args.m + kMost - 1) / kMost;
  for (std::int64_t p = args.first; p < args.last; p += kGroupPanels) {
    const std::int64_t panels = args.last - p < kGroupPanels ? args.last - p : kGroupPanels;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t row = args.m * block / blocks;
      PanelGroup<Step>(args, in, row, args.m * (block + 1) / blocks - row, p, panels);
    }
  }
}

}  // namespace
}  // namespace inferd::kernels
