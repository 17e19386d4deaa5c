// SPDX-License-Identifier: Apache-2.0
// Products with bf16, float and half panels on AVX2: tiles of up to 4 tokens x 16 rows, one
// accumulator per (row, token), k ascending. Bytes moved: the panel once per 512 rows.
#include "kernels/matmul/matmul_avx2.h"
#include "kernels/matmul/store_avx2.h"

namespace inferd::kernels {
namespace {

/// Bytes from one k (a pair of k in kBf16) of a panel to the next.
constexpr int StepBytes(PackForm form) { return form == PackForm::kF16 ? 64 : 128; }
constexpr int PerStep(PackForm form) { return form == PackForm::kBf16 ? 2 : 1; }

/// Adds `values` k of 16 rows to c; tokens of a are lda floats apart. The odd half of a last pair
/// is not multiplied: what follows the row in `a` is no number of this row.
template <PackForm kForm, int kTokens>
void PlainTile(
    const std::uint8_t* w, std::int64_t values, const float* a, std::ptrdiff_t lda, float* c) {
  __m256 f[2][kTokens];
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    f[0][t] = _mm256_loadu_ps(c + t * kPanelRows);
    f[1][t] = _mm256_loadu_ps(c + t * kPanelRows + 8);
  });
  const auto add = [&](auto octet, __m256 weight, const float* x) INFERD_INLINE {
    Unroll<kTokens>([&](auto t) INFERD_INLINE {
      f[octet][t] = _mm256_fmadd_ps(weight, _mm256_broadcast_ss(x + t * lda), f[octet][t]);
    });
  };
  std::int64_t k = 0;
  for (; k + PerStep(kForm) <= values; k += PerStep(kForm), w += StepBytes(kForm)) {
    Unroll<2>([&](auto octet) INFERD_INLINE {
      if constexpr (kForm == PackForm::kBf16) {
        const __m256i pairs = Load(w + octet * 32);
        add(octet, Even(pairs), a + k);
        add(octet, Odd(pairs), a + k + 1);
      } else if constexpr (kForm == PackForm::kF16) {
        add(octet, HalfRow(w + octet * 16), a + k);
      } else {
        add(octet, _mm256_castsi256_ps(Load(w + octet * 32)), a + k);
      }
    });
  }
  if (k < values) {
    Unroll<2>([&](auto octet) INFERD_INLINE { add(octet, Even(Load(w + octet * 32)), a + k); });
  }
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    _mm256_storeu_ps(c + t * kPanelRows, f[0][t]);
    _mm256_storeu_ps(c + t * kPanelRows + 8, f[1][t]);
  });
}

template <PackForm kForm>
void Form(const MatMulArgs& args) {
  constexpr std::int64_t kChunk = 128 * PerStep(kForm);
  const std::int64_t tiles = (args.m + 3) / 4;
  float* c = reinterpret_cast<float*>(args.scratch);
  for (std::int64_t p = args.first; p < args.last; ++p) {
    const std::uint8_t* panel = args.panels + static_cast<std::size_t>(p) * args.panel_bytes;
    __builtin_memset(c, 0, static_cast<std::size_t>(args.m) * kPanelRows * 4);
    for (std::int64_t k = 0; k < args.k; k += kChunk) {
      const std::int64_t count = args.k - k < kChunk ? args.k - k : kChunk;
      const std::uint8_t* w = panel + k / PerStep(kForm) * StepBytes(kForm);
      for (std::int64_t i = 0; i < tiles * 2; ++i) {
        const std::int64_t t0 = args.m * (i / 2) / tiles;
        const std::int64_t half = i % 2;
        const float* x = args.a_float + t0 * args.ld_float + k;
        float* out = c + t0 * kPanelRows + half * 16;
        const std::uint8_t* rows = w + half * StepBytes(kForm) / 2;
        switch (args.m * (i / 2 + 1) / tiles - t0) {
          case 1:
            PlainTile<kForm, 1>(rows, count, x, args.ld_float, out);
            break;
          case 2:
            PlainTile<kForm, 2>(rows, count, x, args.ld_float, out);
            break;
          case 3:
            PlainTile<kForm, 3>(rows, count, x, args.ld_float, out);
            break;
          default:
            PlainTile<kForm, 4>(rows, count, x, args.ld_float, out);
        }
      }
    }
    StorePanel(args, p, c, 1.0f);
  }
}

}  // namespace

void FloatMatMulAvx2(const MatMulArgs& args) {
  switch (args.form) {
    case PackForm::kBf16:
      return Form<PackForm::kBf16>(args);
    case PackForm::kF32:
      return Form<PackForm::kF32>(args);
    default:
      return Form<PackForm::kF16>(args);
  }
}

}  // namespace inferd::kernels
