// SPDX-License-Identifier: Apache-2.0
// Products with bf16, float and half panels: one tile family of 1..12 tokens x 32 rows, one
// accumulator per (row, token), k ascending. Bytes moved: the panel once per 512 rows.
#include "kernels/matmul/int8_avx512.h"
#include "kernels/matmul/matmul_avx512.h"

namespace inferd::kernels {
namespace {

/// A step is one k of the float kinds and a pair of k of the bf16 kinds. Inputs are read as 4-byte
/// words, a float or a bf16 pair; kBf16Fma reads two floats per step, expanded from the pairs by
/// Expand().
enum class Kind { kF32, kF16, kBf16Dot, kBf16Fma };

constexpr bool IsPairs(Kind kind) { return kind == Kind::kBf16Dot || kind == Kind::kBf16Fma; }
constexpr int StepBytes(Kind kind) { return kind == Kind::kF16 ? 64 : 128; }
constexpr int InputBytes(Kind kind) { return kind == Kind::kBf16Fma ? 8 : 4; }

// Adds one step of 32 rows to the sums of kTokens tokens; a token's broadcast serves both bricks.
template <Kind kKind, int kTokens>
INFERD_INLINE inline void AddStep(const std::uint8_t* w,
                                  const std::uint8_t* a,
                                  std::ptrdiff_t lda,
                                  __m512 (&f)[2][kTokens]) {
  if constexpr (kKind == Kind::kBf16Dot) {
    const auto w0 = reinterpret_cast<__m512bh>(Load(w));
    const auto w1 = reinterpret_cast<__m512bh>(Load(w + 64));
    Unroll<kTokens>([&](auto t) INFERD_INLINE {
      const auto x = reinterpret_cast<__m512bh>(Broadcast4(a + t * lda));
      f[0][t] = _mm512_dpbf16_ps(f[0][t], w0, x);
      f[1][t] = _mm512_dpbf16_ps(f[1][t], w1, x);
    });
  } else if constexpr (kKind == Kind::kBf16Fma) {
    const __m512i w0 = Load(w);
    const __m512i w1 = Load(w + 64);
    const __m512 odd0 = OddBf16(w0);
    const __m512 odd1 = OddBf16(w1);
    Unroll<kTokens>([&](auto t) INFERD_INLINE {
      const __m512 x = BroadcastFloat(a + t * lda + 4);
      f[0][t] = _mm512_fmadd_ps(odd0, x, f[0][t]);
      f[1][t] = _mm512_fmadd_ps(odd1, x, f[1][t]);
    });
    const __m512 even0 = EvenBf16(w0);
    const __m512 even1 = EvenBf16(w1);
    Unroll<kTokens>([&](auto t) INFERD_INLINE {
      const __m512 x = BroadcastFloat(a + t * lda);
      f[0][t] = _mm512_fmadd_ps(even0, x, f[0][t]);
      f[1][t] = _mm512_fmadd_ps(even1, x, f[1][t]);
    });
  } else {
    const __m512 w0 = kKind == Kind::kF16 ? HalfRow(w) : _mm512_load_ps(w);
    const __m512 w1 = kKind == Kind::kF16 ? HalfRow(w + 32) : _mm512_load_ps(w + 64);
    Unroll<kTokens>([&](auto t) INFERD_INLINE {
      const __m512 x = BroadcastFloat(a + t * lda);
      f[0][t] = _mm512_fmadd_ps(x, w0, f[0][t]);
      f[1][t] = _mm512_fmadd_ps(x, w1, f[1][t]);
    });
  }
}

/// Tokens of a are lda bytes apart. c [tokens, 32] is loaded, continued and stored. ahead: prefetch
/// distance in bytes.
template <Kind kKind, int kTokens>
void PlainTile(const std::uint8_t* w,
               std::int64_t steps,
               const std::uint8_t* a,
               std::ptrdiff_t lda,
               float* c,
               std::ptrdiff_t ahead) {
  __m512 f[2][kTokens];
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    f[0][t] = _mm512_load_ps(c + t * 32);
    f[1][t] = _mm512_load_ps(c + t * 32 + 16);
  });
  for (std::int64_t p = 0; p < steps; ++p, w += StepBytes(kKind), a += InputBytes(kKind)) {
    Prefetch(w + ahead);
    if constexpr (StepBytes(kKind) == 128) {
      Prefetch(w + ahead + 64);
    }
    AddStep<kKind, kTokens>(w, a, lda, f);
  }
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    _mm512_store_ps(c + t * 32, f[0][t]);
    _mm512_store_ps(c + t * 32 + 16, f[1][t]);
  });
}

// `values` bf16 values of `tokens` tokens as float, tokens `values` floats apart.
INFERD_INLINE inline void Expand(const std::uint8_t* a,
                                 std::ptrdiff_t lda,
                                 std::int64_t tokens,
                                 std::int64_t values,
                                 float* out) {
  for (std::int64_t t = 0; t < tokens; ++t, a += lda, out += values) {
    for (std::int64_t i = 0; i < values; i += 16) {
      const __mmask16 lanes = FirstLanes(values - i);
      const __m256i narrow = _mm256_maskz_loadu_epi16(lanes, a + 2 * i);
      const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16);
      _mm512_mask_storeu_ps(out + i, lanes, _mm512_castsi512_ps(wide));
    }
  }
}

template <Kind kKind>
INFERD_INLINE inline void PlainTileRows(std::int64_t tokens,
                                        const std::uint8_t* w,
                                        std::int64_t steps,
                                        const std::uint8_t* a,
                                        std::ptrdiff_t lda,
                                        float* c,
                                        std::ptrdiff_t ahead) {
  switch (tokens) {
    case 1:
      return PlainTile<kKind, 1>(w, steps, a, lda, c, ahead);
    case 2:
      return PlainTile<kKind, 2>(w, steps, a, lda, c, ahead);
    case 3:
      return PlainTile<kKind, 3>(w, steps, a, lda, c, ahead);
    case 4:
      return PlainTile<kKind, 4>(w, steps, a, lda, c, ahead);
    case 5:
      return PlainTile<kKind, 5>(w, steps, a, lda, c, ahead);
    case 6:
      return PlainTile<kKind, 6>(w, steps, a, lda, c, ahead);
    case 7:
      return PlainTile<kKind, 7>(w, steps, a, lda, c, ahead);
    case 8:
      return PlainTile<kKind, 8>(w, steps, a, lda, c, ahead);
    case 9:
      return PlainTile<kKind, 9>(w, steps, a, lda, c, ahead);
    case 10:
      return PlainTile<kKind, 10>(w, steps, a, lda, c, ahead);
    case 11:
      return PlainTile<kKind, 11>(w, steps, a, lda, c, ahead);
    default:
      return PlainTile<kKind, 12>(w, steps, a, lda, c, ahead);
  }
}

template <Kind kKind>
void PlainForm(const MatMulArgs& args) {
  constexpr std::int64_t kChunk = 224;
  static_assert(kMatMulScratch >= kMatMulRows * kPanelRows * 4 + 12 * kChunk * 8);
  const std::int64_t m = args.m;
  const std::int64_t steps = IsPairs(kKind) ? (args.k + 1) / 2 : args.k;
  const std::int64_t tiles = (m + 11) / 12;
  const std::int64_t chunk = m <= 12 && kKind != Kind::kBf16Fma ? steps : m <= 32 ? 64 : kChunk;
  const auto* inputs = IsPairs(kKind) ? reinterpret_cast<const std::uint8_t*>(args.a_bf16)
                                      : reinterpret_cast<const std::uint8_t*>(args.a_float);
  const std::ptrdiff_t ld_inputs = IsPairs(kKind) ? args.ld_bf16 * 2 : args.ld_float * 4;
  float* c = reinterpret_cast<float*>(args.scratch);
  float* expanded = c + m * kPanelRows;
  for (std::int64_t p = args.first; p < args.last; ++p) {
    const std::uint8_t* panel = args.panels + static_cast<std::size_t>(p) * args.panel_bytes;
    __builtin_memset(c, 0, static_cast<std::size_t>(m) * kPanelRows * 4);
    for (std::int64_t j = 0; j < steps; j += chunk) {
      const std::int64_t count = steps - j < chunk ? steps - j : chunk;
      for (std::int64_t i = 0; i < tiles; ++i) {
        const std::int64_t t0 = m * i / tiles;
        const std::int64_t tokens = m * (i + 1) / tiles - t0;
        const std::uint8_t* a = inputs + t0 * ld_inputs + j * 4;
        std::ptrdiff_t lda = ld_inputs;
        if constexpr (kKind == Kind::kBf16Fma) {
          Expand(a, lda, tokens, count * 2, expanded);
          a = reinterpret_cast<const std::uint8_t*>(expanded);
          lda = count * 8;
        }
        const std::ptrdiff_t ahead = i == 0 && m <= 32 ? kPrefetchAhead : 0;
        PlainTileRows<kKind>(
            tokens, panel + j * StepBytes(kKind), count, a, lda, c + t0 * kPanelRows, ahead);
      }
    }
    for (std::int64_t t = 0; t < m; ++t) {
      const float* row = c + t * kPanelRows;
      StoreRow(args, t, p * kPanelRows, _mm512_load_ps(row), _mm512_load_ps(row + 16));
    }
  }
}

}  // namespace

void FloatMatMulAvx512(const MatMulArgs& args) {
  switch (args.form) {
    case PackForm::kBf16:
      return PlainForm<Kind::kBf16Fma>(args);
    case PackForm::kF32:
      return PlainForm<Kind::kF32>(args);
    default:
      return PlainForm<Kind::kF16>(args);
  }
}

void Bf16DotAvx512(const MatMulArgs& args) { PlainForm<Kind::kBf16Dot>(args); }

}  // namespace inferd::kernels
