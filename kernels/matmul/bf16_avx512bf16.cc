// SPDX-License-Identifier: Apache-2.0
// Products of bf16 activations with bf16 panels: vdpbf16ps, two k per lane and instruction.
#include "kernels/matmul/plain_avx512.h"

namespace inferd::kernels {
namespace {

struct Bf16DotStep {
  static constexpr int kBytes = 128;
  static constexpr int kUnits = 1;  // a pair
  template <int kTokens>
  INFERD_INLINE static inline void Add(const std::uint8_t* w,
                                       const float* a,
                                       std::ptrdiff_t lda,
                                       __m512 (&f)[2][kTokens]) {
    const auto w0 = reinterpret_cast<__m512bh>(Load(w));
    const auto w1 = reinterpret_cast<__m512bh>(Load(w + 64));
    Unroll<kTokens>([&](auto t) INFERD_INLINE {
      const auto x = reinterpret_cast<__m512bh>(Broadcast4(a + t * lda));
      f[0][t] = _mm512_dpbf16_ps(f[0][t], w0, x);
      f[1][t] = _mm512_dpbf16_ps(f[1][t], w1, x);
    });
  }
};

}  // namespace

void Bf16DotMatMulAvx512(const MatMulArgs& args) {
  // Pairs are moved as floats are: loads, stores and broadcasts of 4 bytes.
  const PlainInput in = {
      reinterpret_cast<const float*>(args.a_bf16), args.ld_bf16 / 2, (args.k + 1) / 2};
  PlainMatMul<Bf16DotStep>(args, in);
}

void ToBf16Avx512(const float* x, std::int64_t k, std::uint16_t* out) {
  for (std::int64_t i = 0; i < k + (k & 1); i += 16) {
    const __m256bh y = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(FirstLanes(k - i), x + i));
    _mm256_mask_storeu_epi16(out + i, FirstLanes(k + (k & 1) - i), reinterpret_cast<__m256i>(y));
  }
}

}  // namespace inferd::kernels
