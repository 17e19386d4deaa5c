// SPDX-License-Identifier: Apache-2.0
// Products with bf16, float and half panels: one tile family of 1..12 tokens x 32 rows, one accumulator per (row, token),
// k ascending. Bytes moved: the panel once per 512 rows.
#include "kernels/matmul/int8_avx512.h"
#include "kernels/matmul/matmul_avx512.h"

namespace inferd::kernels {
namespace {

INFERD_INLINE inline __m512bh AsBf16(__m512i x) { return reinterpret_cast<__m512bh>(x); }

/// A step is one k of kF32 and kF16 and a pair of k of kBf16.
template <PackForm kForm>
struct Plain {
  static constexpr int kStepBytes = kForm == PackForm::kF16 ? 64 : 128;
  using Input = float;  // a bf16 pair has the same size
};

template <PackForm kForm>
INFERD_INLINE inline __m512 Add(__m512 f, __m512i w, __m512i a) {
  if constexpr (kForm == PackForm::kBf16) {
    return _mm512_dpbf16_ps(f, AsBf16(w), AsBf16(a));
  } else {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(w), f);
  }
}

template <PackForm kForm>
INFERD_INLINE inline __m512i Weights(const std::uint8_t* w, int brick) {
  if constexpr (kForm == PackForm::kF16) {
    return _mm512_castps_si512(HalfRow(w + brick * 32));
  } else {
    return Load(w + brick * 64);
  }
}

/// a: 4 bytes per step, tokens lda bytes apart. c [tokens, 32] is loaded, continued and stored.
template <PackForm kForm, int kTokens>
void PlainTile(const std::uint8_t* w,
               std::int64_t steps,
               const std::uint8_t* a,
               std::ptrdiff_t lda,
               float* c,
               bool stream) {
  constexpr int kStepBytes = Plain<kForm>::kStepBytes;
  __m512 f[2][kTokens];
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    f[0][t] = _mm512_load_ps(c + t * 32);
    f[1][t] = _mm512_load_ps(c + t * 32 + 16);
  });
  const std::ptrdiff_t ahead = stream ? kPrefetchAhead : 0;
  for (std::int64_t p = 0; p < steps; ++p, w += kStepBytes, a += 4) {
    Prefetch(w + ahead);
    if constexpr (kStepBytes == 128) {
      Prefetch(w + ahead + 64);
    }
    const __m512i w0 = Weights<kForm>(w, 0);
    const __m512i w1 = Weights<kForm>(w, 1);
    Unroll<kTokens>([&](auto t) INFERD_INLINE {
      const __m512i x = Broadcast4(a + t * lda);
      f[0][t] = Add<kForm>(f[0][t], w0, x);
      f[1][t] = Add<kForm>(f[1][t], w1, x);
    });
  }
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    _mm512_store_ps(c + t * 32, f[0][t]);
    _mm512_store_ps(c + t * 32 + 16, f[1][t]);
  });
}

template <PackForm kForm>
INFERD_INLINE inline void PlainTileRows(std::int64_t tokens,
                                        const std::uint8_t* w,
                                        std::int64_t steps,
                                        const std::uint8_t* a,
                                        std::ptrdiff_t lda,
                                        float* c,
                                        bool stream) {
  switch (tokens) {
    case 1:
      return PlainTile<kForm, 1>(w, steps, a, lda, c, stream);
    case 2:
      return PlainTile<kForm, 2>(w, steps, a, lda, c, stream);
    case 3:
      return PlainTile<kForm, 3>(w, steps, a, lda, c, stream);
    case 4:
      return PlainTile<kForm, 4>(w, steps, a, lda, c, stream);
    case 5:
      return PlainTile<kForm, 5>(w, steps, a, lda, c, stream);
    case 6:
      return PlainTile<kForm, 6>(w, steps, a, lda, c, stream);
    case 7:
      return PlainTile<kForm, 7>(w, steps, a, lda, c, stream);
    case 8:
      return PlainTile<kForm, 8>(w, steps, a, lda, c, stream);
    case 9:
      return PlainTile<kForm, 9>(w, steps, a, lda, c, stream);
    case 10:
      return PlainTile<kForm, 10>(w, steps, a, lda, c, stream);
    case 11:
      return PlainTile<kForm, 11>(w, steps, a, lda, c, stream);
    default:
      return PlainTile<kForm, 12>(w, steps, a, lda, c, stream);
  }
}

template <PackForm kForm>
void PlainForm(const MatMulArgs& args) {
  constexpr int kStepBytes = Plain<kForm>::kStepBytes;
  constexpr bool kPairs = kForm == PackForm::kBf16;
  const std::int64_t m = args.m;
  const std::int64_t steps = kPairs ? (args.k + 1) / 2 : args.k;
  const std::int64_t tiles = (m + 11) / 12;
  const std::int64_t chunk = m <= 12 ? steps : m <= 32 ? 64 : 224;
  const auto* a = kPairs ? reinterpret_cast<const std::uint8_t*>(args.a_bf16)
                         : reinterpret_cast<const std::uint8_t*>(args.a_float);
  const std::ptrdiff_t lda = kPairs ? args.ld_bf16 * 2 : args.ld_float * 4;
  float* c = reinterpret_cast<float*>(args.scratch);
  for (std::int64_t p = args.first; p < args.last; ++p) {
    const std::uint8_t* panel = args.panels + static_cast<std::size_t>(p) * args.panel_bytes;
    __builtin_memset(c, 0, static_cast<std::size_t>(m) * kPanelRows * 4);
    for (std::int64_t j = 0; j < steps; j += chunk) {
      const std::int64_t count = steps - j < chunk ? steps - j : chunk;
      for (std::int64_t i = 0; i < tiles; ++i) {
        const std::int64_t t0 = m * i / tiles;
        PlainTileRows<kForm>(m * (i + 1) / tiles - t0,
                             panel + j * kStepBytes,
                             count,
                             a + t0 * lda + j * 4,
                             lda,
                             c + t0 * kPanelRows,
                             i == 0 && m <= 32);
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
      return PlainForm<PackForm::kBf16>(args);
    case PackForm::kF32:
      return PlainForm<PackForm::kF32>(args);
    default:
      return PlainForm<PackForm::kF16>(args);
  }
}

}  // namespace inferd::kernels
