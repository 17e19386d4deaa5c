// SPDX-License-Identifier: Apache-2.0
// Attention over a latent cache with vectors, for an instruction set that `Simd` describes. A page
// is widened to floats once for all rows of the tile, which share it: with 12 rows that is a small
// part of the arithmetic. Bytes moved: the seen tokens once per tile of query rows.
//
// Every (row, token) and (row, column) is a sum of its own in ascending order, and a masked p is 0,
// which changes nothing: tiles, batches and prompt chunks do not change a row's bits. Internal
// linkage throughout, as in simd_avx512.h.
#pragma once

#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>

#define INFERD_LATENT_INLINE __attribute__((always_inline)) inline

namespace inferd::kernels {
namespace {

constexpr float kLatentLog2E = 1.44269504f;

/// Everything a tile keeps. Rows of q and of the page are padded with zeros to whole vectors.
template <class Simd>
struct LatentTile {
  alignas(64) float page[kPageTokens * kMaxLatentDim];  // [tokens, pitch]
  alignas(64) float q[kAttentionRows * kMaxLatentDim];  // [rows, pitch]
  alignas(64) float o[kAttentionRows * kMaxHeadDim];    // [rows, width]
  alignas(64) float s[kAttentionRows][kPageTokens];     // scores, then p
  typename Simd::Vec l[kAttentionRows];
  float m[kAttentionRows];
  std::int64_t end[kAttentionRows];  // first token not seen
};

// Tokens [0, count) of a page as floats, [count, pitch]; the pad stays as it is.
template <class Simd>
void WidenPage(
    const LatentArgs& args, const std::byte* page, int count, std::int64_t pitch, float* out) {
  constexpr int kLanes = Simd::kLanes;
  const auto* values = reinterpret_cast<const std::uint8_t*>(page);
  const std::int64_t bytes = args.format == KvValue::kF32                                    ? 4
                             : args.format == KvValue::kF16 || args.format == KvValue::kBf16 ? 2
                                                                                             : 1;
  for (int t = 0; t < count; ++t, out += pitch, values += args.dim * bytes) {
    float scale = 1;
    if (args.format == KvValue::kInt8) {
      __builtin_memcpy(&scale, page + kPageTokens * args.dim + t * 4, 4);
    }
    const typename Simd::Vec factor = Simd::Spread(scale);
    std::int64_t i = 0;
    for (; i + kLanes <= args.dim; i += kLanes) {
      Simd::Store(out + i, Simd::Mul(Simd::Widen(args.format, values + i * bytes), factor));
    }
    if (i < args.dim) {
      // The last values through a copy: what follows them may not be readable.
      alignas(64) std::uint8_t rest[64] = {};
      alignas(64) float widened[kLanes];
      __builtin_memcpy(rest, values + i * bytes, static_cast<std::size_t>((args.dim - i) * bytes));
      Simd::Store(widened, Simd::Mul(Simd::Widen(args.format, rest), factor));
      __builtin_memcpy(out + i, widened, static_cast<std::size_t>(args.dim - i) * 4);
    }
  }
}

// s[r][t] = q[r] . page[t] for kRows rows from `row` and kTokens tokens from `token`.
template <class Simd, int kRows, int kTokens>
INFERD_LATENT_INLINE void ScoreBlock(LatentTile<Simd>& tile,
                                     std::int64_t pitch,
                                     int row,
                                     int token) {
  typename Simd::Vec f[kRows][kTokens];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      f[r][t] = Simd::Spread(0);
    }
  }
  const float* q = tile.q + row * pitch;
  const float* k = tile.page + token * pitch;
  for (std::int64_t d = 0; d < pitch; d += Simd::kLanes) {
    typename Simd::Vec kv[kTokens];
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      kv[t] = Simd::Load(k + t * pitch + d);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const typename Simd::Vec x = Simd::Load(q + r * pitch + d);
#pragma GCC unroll 4
      for (int t = 0; t < kTokens; ++t) {
        f[r][t] = Simd::Fma(x, kv[t], f[r][t]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int t = 0; t < kTokens; ++t) {
      tile.s[row + r][token + t] = Simd::Sum(f[r][t]);
    }
  }
}

// o[r][column .. column + kColumns vectors) += p[r] . page over `count` tokens.
template <class Simd, int kRows, int kColumns>
INFERD_LATENT_INLINE void ValueBlock(LatentTile<Simd>& tile,
                                     std::int64_t pitch,
                                     std::int64_t width,
                                     int count,
                                     int row,
                                     std::int64_t column) {
  constexpr int kLanes = Simd::kLanes;
  typename Simd::Vec f[kRows][kColumns];
  float* o = tile.o + row * width + column;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      f[r][c] = Simd::Load(o + r * width + c * kLanes);
    }
  }
  const float* v = tile.page + column;
  for (int t = 0; t < count; ++t, v += pitch) {
    typename Simd::Vec value[kColumns];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      value[c] = Simd::Load(v + c * kLanes);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const typename Simd::Vec p = Simd::Spread(tile.s[row + r][t]);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) {
        f[r][c] = Simd::Fma(p, value[c], f[r][c]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      Simd::Store(o + r * width + c * kLanes, f[r][c]);
    }
  }
}

template <class Simd, int kRows>
INFERD_LATENT_INLINE void ValueRows(
    LatentTile<Simd>& tile, std::int64_t pitch, std::int64_t width, int count, int row) {
  constexpr int kColumns = Simd::kBlock;
  std::int64_t column = 0;
  for (; column + kColumns * Simd::kLanes <= width; column += kColumns * Simd::kLanes) {
    ValueBlock<Simd, kRows, kColumns>(tile, pitch, width, count, row, column);
  }
  for (; column < width; column += Simd::kLanes) {
    ValueBlock<Simd, kRows, 1>(tile, pitch, width, count, row, column);
  }
}

// Online softmax of one row over the page at `base`: s becomes p, o and l are rescaled.
template <class Simd>
INFERD_LATENT_INLINE void LatentSoftmax(
    LatentTile<Simd>& tile, float scale, std::int64_t width, int r, std::int64_t base) {
  constexpr int kLanes = Simd::kLanes;
  float* s = tile.s[r];
  const std::int64_t seen = tile.end[r] - base;
  if (seen <= 0) {
    __builtin_memset(s, 0, sizeof tile.s[r]);
    return;
  }
  const int count = seen < kPageTokens ? static_cast<int>(seen) : kPageTokens;
  const float unit = scale * kLatentLog2E;
  float top = tile.m[r];
  for (int t = 0; t < count; ++t) {
    s[t] *= unit;
    top = s[t] > top ? s[t] : top;
  }
  for (int t = count; t < kPageTokens; ++t) {
    s[t] = -__builtin_inff();
  }
  const typename Simd::Vec vm = Simd::Spread(top);
  typename Simd::Vec sum = Simd::Spread(0);
  for (int t = 0; t < kPageTokens; t += kLanes) {
    const typename Simd::Vec p = Simd::Exp2(Simd::Sub(Simd::Load(s + t), vm));
    Simd::Store(s + t, p);
  }
  for (int t = count; t < kPageTokens; ++t) {
    s[t] = 0;
  }
  for (int t = 0; t < kPageTokens; t += kLanes) {
    sum = Simd::Add(sum, Simd::Load(s + t));
  }
  if (top > tile.m[r]) {
    const typename Simd::Vec shrink = Simd::Exp2(Simd::Spread(tile.m[r] - top));
    tile.l[r] = Simd::Mul(tile.l[r], shrink);
    float* o = tile.o + r * width;
    for (std::int64_t d = 0; d < width; d += kLanes) {
      Simd::Store(o + d, Simd::Mul(Simd::Load(o + d), shrink));
    }
    tile.m[r] = top;
  }
  tile.l[r] = Simd::Add(tile.l[r], sum);
}

template <class Simd>
void AttendLatent(const LatentArgs& args) {
  constexpr int kLanes = Simd::kLanes;
  constexpr int kBlock = Simd::kBlock;
  LatentTile<Simd> tile;
  const std::int64_t pitch = (args.dim + kLanes - 1) / kLanes * kLanes;
  const std::int64_t width = (args.kv_rank + kLanes - 1) / kLanes * kLanes;
  const auto row_bytes = static_cast<std::size_t>(args.dim) * 4;
  const auto pad_bytes = static_cast<std::size_t>(pitch - args.dim) * 4;
  std::int64_t longest = 0;
  for (int r = 0; r < args.rows; ++r) {
    tile.m[r] = -__builtin_inff();
    tile.l[r] = Simd::Spread(0);
    tile.end[r] = args.pos[r] + 1;
    longest = tile.end[r] > longest ? tile.end[r] : longest;
    __builtin_memcpy(tile.q + r * pitch, args.q[r], row_bytes);
    __builtin_memset(tile.q + r * pitch + args.dim, 0, pad_bytes);
  }
  __builtin_memset(tile.o, 0, static_cast<std::size_t>(args.rows * width) * 4);
  for (int t = 0; t < kPageTokens; ++t) {
    __builtin_memset(tile.page + t * pitch + args.dim, 0, pad_bytes);
  }
  for (std::int64_t base = 0; base < longest; base += kPageTokens) {
    const std::int64_t left = longest - base;
    const int count = left < kPageTokens ? static_cast<int>(left) : kPageTokens;
    const std::byte* page =
        args.base + static_cast<std::size_t>(args.pages[base / kPageTokens]) * args.page_bytes;
    WidenPage<Simd>(args, page, count, pitch, tile.page);
    int row = 0;
    for (; row + kBlock <= args.rows; row += kBlock) {
      int t = 0;
      for (; t + 4 <= count; t += 4) {
        ScoreBlock<Simd, kBlock, 4>(tile, pitch, row, t);
      }
      for (; t < count; ++t) {
        ScoreBlock<Simd, kBlock, 1>(tile, pitch, row, t);
      }
    }
    for (; row < args.rows; ++row) {
      int t = 0;
      for (; t + 4 <= count; t += 4) {
        ScoreBlock<Simd, 1, 4>(tile, pitch, row, t);
      }
      for (; t < count; ++t) {
        ScoreBlock<Simd, 1, 1>(tile, pitch, row, t);
      }
    }
    for (int r = 0; r < args.rows; ++r) {
      LatentSoftmax(tile, args.scale, width, r, base);
    }
    row = 0;
    for (; row + kBlock <= args.rows; row += kBlock) {
      ValueRows<Simd, kBlock>(tile, pitch, width, count, row);
    }
    for (; row < args.rows; ++row) {
      ValueRows<Simd, 1>(tile, pitch, width, count, row);
    }
  }
  for (int r = 0; r < args.rows; ++r) {
    const float inverse = 1 / Simd::Sum(tile.l[r]);
    for (std::int64_t d = 0; d < args.kv_rank; ++d) {
      args.y[r][d] = tile.o[r * width + d] * inverse;
    }
  }
}

}  // namespace
}  // namespace inferd::kernels

#undef INFERD_LATENT_INLINE
