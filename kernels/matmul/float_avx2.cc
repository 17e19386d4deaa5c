// SPDX-License-Identifier: Apache-2.0
// Products with bf16, float and half panels on AVX2: tiles of up to 4 tokens x 16 rows, k
// ascending, a bf16 pair as two fma (odd, then even) like vdpbf16ps. Bytes moved: the panel once
// per 512 rows.
#include "kernels/matmul/matmul_avx2.h"
#include "kernels/matmul/store_avx2.h"

namespace inferd::kernels {
namespace {

/// A step is one k of kF32 and kF16 and a pair of k of kBf16; a: 4 bytes per step, tokens lda bytes
/// apart.
template <PackForm kForm, int kTokens>
void PlainTile(const std::uint8_t* w,
               std::int64_t steps,
               const std::uint8_t* a,
               std::ptrdiff_t lda,
               float* c) {
  constexpr int kValue = kForm == PackForm::kF16 ? 2 : 4;
  __m256 f[2][kTokens];
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    f[0][t] = _mm256_loadu_ps(c + t * kPanelRows);
    f[1][t] = _mm256_loadu_ps(c + t * kPanelRows + 8);
  });
  for (std::int64_t p = 0; p < steps; ++p, w += kValue * kPanelRows, a += 4) {
    Unroll<2>([&](auto octet) INFERD_INLINE {
      if constexpr (kForm == PackForm::kBf16) {
        const __m256i pairs = Load(w + octet * 32);
        const __m256 odd = Odd(pairs);
        const __m256 even = Even(pairs);
        Unroll<kTokens>([&](auto t) INFERD_INLINE {
          const __m256i x = Broadcast4(a + t * lda);
          f[octet][t] = _mm256_fmadd_ps(odd, Odd(x), f[octet][t]);
          f[octet][t] = _mm256_fmadd_ps(even, Even(x), f[octet][t]);
        });
      } else {
        const __m256 value = kForm == PackForm::kF16
                                 ? HalfRow(w + octet * 16)
                                 : _mm256_loadu_ps(reinterpret_cast<const float*>(w) + octet * 8);
        Unroll<kTokens>([&](auto t) INFERD_INLINE {
          f[octet][t] =
              _mm256_fmadd_ps(_mm256_castsi256_ps(Broadcast4(a + t * lda)), value, f[octet][t]);
        });
      }
    });
  }
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    _mm256_storeu_ps(c + t * kPanelRows, f[0][t]);
    _mm256_storeu_ps(c + t * kPanelRows + 8, f[1][t]);
  });
}

template <PackForm kForm>
void Form(const MatMulArgs& args) {
  constexpr bool kPairs = kForm == PackForm::kBf16;
  constexpr int kValue = kForm == PackForm::kF16 ? 2 : 4;
  const std::int64_t steps = kPairs ? (args.k + 1) / 2 : args.k;
  const std::int64_t tiles = (args.m + 3) / 4;
  const std::int64_t chunk = 128;
  const auto* a = kPairs ? reinterpret_cast<const std::uint8_t*>(args.a_bf16)
                         : reinterpret_cast<const std::uint8_t*>(args.a_float);
  const std::ptrdiff_t lda = kPairs ? args.ld_bf16 * 2 : args.ld_float * 4;
  float* c = reinterpret_cast<float*>(args.scratch);
  for (std::int64_t p = args.first; p < args.last; ++p) {
    const std::uint8_t* panel = args.panels + static_cast<std::size_t>(p) * args.panel_bytes;
    __builtin_memset(c, 0, static_cast<std::size_t>(args.m) * kPanelRows * 4);
    for (std::int64_t j = 0; j < steps; j += chunk) {
      const std::int64_t count = steps - j < chunk ? steps - j : chunk;
      const std::uint8_t* w = panel + j * kValue * kPanelRows;
      for (std::int64_t i = 0; i < tiles * 2; ++i) {
        const std::int64_t t0 = args.m * (i / 2) / tiles;
        const std::int64_t half = i % 2;
        const std::uint8_t* x = a + t0 * lda + j * 4;
        float* out = c + t0 * kPanelRows + half * 16;
        const std::uint8_t* rows = w + half * 16 * kValue;
        switch (args.m * (i / 2 + 1) / tiles - t0) {
          case 1:
            PlainTile<kForm, 1>(rows, count, x, lda, out);
            break;
          case 2:
            PlainTile<kForm, 2>(rows, count, x, lda, out);
            break;
          case 3:
            PlainTile<kForm, 3>(rows, count, x, lda, out);
            break;
          default:
            PlainTile<kForm, 4>(rows, count, x, lda, out);
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
