// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/latent.h"
#include "kernels/attention/latent_simd.h"
#include "kernels/simd_avx512.h"

namespace inferd::kernels {
namespace {

struct Avx512 {
  using Vec = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kBlock = 4;  // rows, and vectors of columns, done at once
  INFERD_INLINE static Vec Spread(float x) { return _mm512_set1_ps(x); }
  INFERD_INLINE static Vec Load(const float* p) { return _mm512_loadu_ps(p); }
  INFERD_INLINE static void Store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  INFERD_INLINE static Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  INFERD_INLINE static Vec Sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  INFERD_INLINE static Vec Mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  INFERD_INLINE static Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  INFERD_INLINE static Vec Exp2(Vec x) { return kernels::Exp2(x); }
  INFERD_INLINE static float Sum(Vec v) { return SumLanes(v); }
  INFERD_INLINE static Vec Widen(KvValue format, const std::uint8_t* p) {
    const auto half = [&] { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); };
    const auto bytes = [&] { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
    switch (format) {
      case KvValue::kF16:
        return _mm512_cvtph_ps(half());
      case KvValue::kBf16:
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half()), 16));
      case KvValue::kFp8: {
        // Exponent and mantissa at their places in a half, whose bias is 8 more: 2^8 too small.
        const __m256i bits = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes()), 7);
        const __m256i value = _mm256_and_si256(bits, _mm256_set1_epi16(static_cast<short>(0xbf80)));
        return _mm512_mul_ps(_mm512_cvtph_ps(value), _mm512_set1_ps(256));
      }
      case KvValue::kInt8:
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes()));
      case KvValue::kF32:
        break;
    }
    return _mm512_loadu_ps(p);
  }
};

}  // namespace

void AttentionLatentAvx512(const LatentArgs& args) { AttendLatent<Avx512>(args); }

}  // namespace inferd::kernels
