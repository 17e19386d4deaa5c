// SPDX-License-Identifier: Apache-2.0
// Products of float activations with float, half and bf16 panels, in FMA.
#include "kernels/matmul/plain_avx512.h"

namespace inferd::kernels {
namespace {

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

struct FloatStep {
  static constexpr int kBytes = 128;
  static constexpr int kUnits = 1;
  template <int kTokens>
  INFERD_INLINE static inline void Add(const std::uint8_t* w,
                                       const float* a,
                                       std::ptrdiff_t lda,
                                       __m512 (&f)[2][kTokens]) {
    AddOne<kTokens>(_mm512_load_ps(w), _mm512_load_ps(w + 64), a, lda, f);
  }
};

struct HalfStep {
  static constexpr int kBytes = 64;
  static constexpr int kUnits = 1;
  template <int kTokens>
  INFERD_INLINE static inline void Add(const std::uint8_t* w,
                                       const float* a,
                                       std::ptrdiff_t lda,
                                       __m512 (&f)[2][kTokens]) {
    AddOne<kTokens>(HalfRow(w), HalfRow(w + 32), a, lda, f);
  }
};

struct Bf16Step {
  static constexpr int kBytes = 128;
  static constexpr int kUnits = 2;
  template <int kTokens>
  INFERD_INLINE static inline void Add(const std::uint8_t* w,
                                       const float* a,
                                       std::ptrdiff_t lda,
                                       __m512 (&f)[2][kTokens]) {
    const __m512i w0 = Load(w);
    const __m512i w1 = Load(w + 64);
    AddOne<kTokens>(EvenBf16(w0), EvenBf16(w1), a, lda, f);
    AddOne<kTokens>(OddBf16(w0), OddBf16(w1), a + 1, lda, f);
  }
  // The odd half is not multiplied: what follows the row in `a` is no number of this row.
  template <int kTokens>
  INFERD_INLINE static inline void AddTail(const std::uint8_t* w,
                                           const float* a,
                                           std::ptrdiff_t lda,
                                           __m512 (&f)[2][kTokens]) {
    AddOne<kTokens>(EvenBf16(Load(w)), EvenBf16(Load(w + 64)), a, lda, f);
  }
};

}  // namespace

void FloatMatMulAvx512(const MatMulArgs& args) {
  const PlainInput in = {args.a_float, args.ld_float, args.k};
  switch (args.form) {
    case PackForm::kBf16:
      return PlainMatMul<Bf16Step>(args, in);
    case PackForm::kF32:
      return PlainMatMul<FloatStep>(args, in);
    default:
      return PlainMatMul<HalfStep>(args, in);
  }
}

}  // namespace inferd::kernels
