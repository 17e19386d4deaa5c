// SPDX-License-Identifier: Apache-2.0
// Products of bf16 activations with bf16 panels: vdpbf16ps, two k per lane and instruction.
#include "kernels/matmul/plain_avx512.h"

namespace inferd::kernels {
namespace {

struct Bf16DotStep {
  static constexpr int kBytes = 128;
  static constexpr int kUnits = 1;  // a pair
  static constexpr std::int64_t kLightTokens = 12;
  template <int kUnit>
  INFERD_INLINE static inline __m512 Operand(const std::uint8_t* w, int brick) {
    return _mm512_castsi512_ps(Load(w + brick * 64));
  }
  INFERD_INLINE static inline __m512 Spread(const float* a) {
    return _mm512_castsi512_ps(Broadcast4(a));
  }
  INFERD_INLINE static inline __m512 Add(__m512 f, __m512 w, __m512 x) {
    return _mm512_dpbf16_ps(f, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
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
