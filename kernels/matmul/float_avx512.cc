// SPDX-License-Identifier: Apache-2.0
// Products of float activations with float, half and bf16 panels, in FMA.
#include "kernels/matmul/plain_avx512.h"

namespace inferd::kernels {
namespace {

struct FloatInputs {
  static constexpr std::int64_t kLightTokens = 2;
  INFERD_INLINE static inline __m512 Spread(const float* a) { return _mm512_set1_ps(*a); }
  INFERD_INLINE static inline __m512 Add(__m512 f, __m512 w, __m512 x) {
    return _mm512_fmadd_ps(x, w, f);
  }
};

struct FloatStep : FloatInputs {
  static constexpr int kBytes = 128;
  static constexpr int kUnits = 1;
  template <int kUnit>
  INFERD_INLINE static inline __m512 Operand(const std::uint8_t* w, int brick) {
    return _mm512_load_ps(w + brick * 64);
  }
};

struct HalfStep : FloatInputs {
  static constexpr int kBytes = 64;
  static constexpr int kUnits = 1;
  template <int kUnit>
  INFERD_INLINE static inline __m512 Operand(const std::uint8_t* w, int brick) {
    return HalfRow(w + brick * 32);
  }
};

struct Bf16Step : FloatInputs {
  static constexpr int kBytes = 128;
  static constexpr int kUnits = 2;
  template <int kUnit>
  INFERD_INLINE static inline __m512 Operand(const std::uint8_t* w, int brick) {
    const __m512i pairs = Load(w + brick * 64);
    return kUnit == 0 ? EvenBf16(pairs) : OddBf16(pairs);
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
