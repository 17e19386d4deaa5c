// SPDX-License-Identifier: Apache-2.0
// Products with bf16, float and half panels: one tile family of 1..12 tokens x 32 rows, one
// accumulator per (row, token), k ascending. Bytes moved: the panel once per 512 rows.
#include "kernels/matmul/int8_avx512.h"
#include "kernels/matmul/matmul_avx512.h"

namespace inferd::kernels {
namespace {

// Bytes from one k (a pair of k in kBf16) of a panel to the next.
constexpr int StepBytes(PackForm form) { return form == PackForm::kF16 ? 64 : 128; }
constexpr int PerStep(PackForm form) { return form == PackForm::kBf16 ? 2 : 1; }

// Up to kFewRows rows the panel's way from memory decides: panels go one by one, prefetched.
constexpr std::int64_t kFewRows = 32;
constexpr std::int64_t kGroupPanels = 4;
constexpr std::int64_t kChunkSteps = 64;
static_assert(kMatMulScratch >= kMatMulRows * kPanelRows * 4 + 12 * 2 * kChunkSteps * 4);

// Adds one k of 32 rows to the sums of kTokens tokens; a token's broadcast serves both bricks.
template <int kTokens>
INFERD_INLINE inline void AddOne(
    __m512 w0, __m512 w1, const float* a, std::ptrdiff_t lda, __m512 (&f)[2][kTokens]) {
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    const __m512 x = _mm512_set1_ps(a[t * lda]);
    f[0][t] = _mm512_fmadd_ps(x, w0, f[0][t]);
    f[1][t] = _mm512_fmadd_ps(x, w1, f[1][t]);
  });
}

template <PackForm kForm, int kTokens>
INFERD_INLINE inline void AddStep(const std::uint8_t* w,
                                  const float* a,
                                  std::ptrdiff_t lda,
                                  __m512 (&f)[2][kTokens]) {
  if constexpr (kForm == PackForm::kBf16) {
    const __m512i w0 = Load(w);
    const __m512i w1 = Load(w + 64);
    AddOne<kTokens>(EvenBf16(w0), EvenBf16(w1), a, lda, f);
    AddOne<kTokens>(OddBf16(w0), OddBf16(w1), a + 1, lda, f);
  } else if constexpr (kForm == PackForm::kF16) {
    AddOne<kTokens>(HalfRow(w), HalfRow(w + 32), a, lda, f);
  } else {
    AddOne<kTokens>(_mm512_load_ps(w), _mm512_load_ps(w + 64), a, lda, f);
  }
}

/// Adds `values` k to c [tokens, 32]; tokens of a are lda floats apart. ahead: prefetch distance in
/// bytes. The odd half of a last pair is not multiplied: what follows the row in `a` is no number
/// of this row.
template <PackForm kForm, int kTokens>
void PlainTile(const std::uint8_t* w,
               std::int64_t values,
               const float* a,
               std::ptrdiff_t lda,
               float* c,
               std::ptrdiff_t ahead) {
  __m512 f[2][kTokens];
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    f[0][t] = _mm512_load_ps(c + t * 32);
    f[1][t] = _mm512_load_ps(c + t * 32 + 16);
  });
  for (std::int64_t steps = values / PerStep(kForm); steps > 0; --steps) {
    Prefetch(w + ahead);
    if constexpr (StepBytes(kForm) == 128) {
      Prefetch(w + ahead + 64);
    }
    AddStep<kForm, kTokens>(w, a, lda, f);
    w += StepBytes(kForm);
    a += PerStep(kForm);
  }
  if (values % PerStep(kForm) != 0) {
    AddOne<kTokens>(EvenBf16(Load(w)), EvenBf16(Load(w + 64)), a, lda, f);
  }
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    _mm512_store_ps(c + t * 32, f[0][t]);
    _mm512_store_ps(c + t * 32 + 16, f[1][t]);
  });
}

template <PackForm kForm>
INFERD_INLINE inline void PlainTileRows(std::int64_t tokens,
                                        const std::uint8_t* w,
                                        std::int64_t values,
                                        const float* a,
                                        std::ptrdiff_t lda,
                                        float* c,
                                        std::ptrdiff_t ahead) {
  switch (tokens) {
    case 1:
      return PlainTile<kForm, 1>(w, values, a, lda, c, ahead);
    case 2:
      return PlainTile<kForm, 2>(w, values, a, lda, c, ahead);
    case 3:
      return PlainTile<kForm, 3>(w, values, a, lda, c, ahead);
    case 4:
      return PlainTile<kForm, 4>(w, values, a, lda, c, ahead);
    case 5:
      return PlainTile<kForm, 5>(w, values, a, lda, c, ahead);
    case 6:
      return PlainTile<kForm, 6>(w, values, a, lda, c, ahead);
    case 7:
      return PlainTile<kForm, 7>(w, values, a, lda, c, ahead);
    case 8:
      return PlainTile<kForm, 8>(w, values, a, lda, c, ahead);
    case 9:
      return PlainTile<kForm, 9>(w, values, a, lda, c, ahead);
    case 10:
      return PlainTile<kForm, 10>(w, values, a, lda, c, ahead);
    case 11:
      return PlainTile<kForm, 11>(w, values, a, lda, c, ahead);
    default:
      return PlainTile<kForm, 12>(w, values, a, lda, c, ahead);
  }
}

// Rows of a far apart meet in few sets of the first-level cache: tiles of a large batch are copied
// together.
INFERD_INLINE inline void CopyTile(
    const float* a, std::ptrdiff_t lda, std::int64_t tokens, std::int64_t values, float* out) {
  for (std::int64_t t = 0; t < tokens; ++t, a += lda, out += values) {
    for (std::int64_t i = 0; i < values; i += 16) {
      const __mmask16 lanes = FirstLanes(values - i);
      _mm512_mask_storeu_ps(out + i, lanes, _mm512_maskz_loadu_ps(lanes, a + i));
    }
  }
}

// Rows [row0, row0 + m) and panels [p0, p0 + panels). Several panels share the copy of a tile and
// one reading of the activations.
template <PackForm kForm>
void PanelGroup(const MatMulArgs& args,
                std::int64_t row0,
                std::int64_t m,
                std::int64_t p0,
                std::int64_t panels) {
  const std::int64_t tiles = (m + 11) / 12;
  const std::int64_t chunk = m <= 12 ? args.k : kChunkSteps * PerStep(kForm);
  float* c = reinterpret_cast<float*>(args.scratch);  // [panels, m, 32]
  float* copy = c + panels * m * kPanelRows;
  __builtin_memset(c, 0, static_cast<std::size_t>(panels * m) * kPanelRows * 4);
  const auto panel = [&](std::int64_t p) INFERD_INLINE {
    return args.panels + static_cast<std::size_t>(p0 + p) * args.panel_bytes;
  };
  for (std::int64_t k = 0; k < args.k; k += chunk) {
    const std::int64_t count = args.k - k < chunk ? args.k - k : chunk;
    for (std::int64_t i = 0; i < tiles; ++i) {
      const std::int64_t t0 = m * i / tiles;
      const std::int64_t tokens = m * (i + 1) / tiles - t0;
      const float* a = args.a_float + (row0 + t0) * args.ld_float + k;
      std::ptrdiff_t lda = args.ld_float;
      if (m > 12) {
        CopyTile(a, lda, tokens, count, copy);
        a = copy;
        lda = count;
      }
      const std::ptrdiff_t ahead = i == 0 && m <= kFewRows ? kPrefetchAhead : 0;
      for (std::int64_t p = 0; p < panels; ++p) {
        const std::uint8_t* w = panel(p) + k / PerStep(kForm) * StepBytes(kForm);
        PlainTileRows<kForm>(tokens, w, count, a, lda, c + (p * m + t0) * kPanelRows, ahead);
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

template <PackForm kForm>
void PlainForm(const MatMulArgs& args) {
  const std::int64_t group = args.m <= kFewRows ? 1 : kGroupPanels;
  const std::int64_t most = kMatMulRows / group;
  const std::int64_t blocks = (args.m + most - 1) / most;
  for (std::int64_t p = args.first; p < args.last; p += group) {
    const std::int64_t panels = args.last - p < group ? args.last - p : group;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t row = args.m * block / blocks;
      PanelGroup<kForm>(args, row, args.m * (block + 1) / blocks - row, p, panels);
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
