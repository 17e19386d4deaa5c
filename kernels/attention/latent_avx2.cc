// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/latent.h"
#include "kernels/attention/latent_simd.h"
#include "kernels/simd_avx2.h"

namespace inferd::kernels {
namespace {

struct Avx2 {
  using Vec = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kBlock = 2;  // rows, and vectors of columns, done at once
  INFERD_INLINE static Vec Spread(float x) { return _mm256_set1_ps(x); }
  INFERD_INLINE static Vec Load(const float* p) { return _mm256_loadu_ps(p); }
  INFERD_INLINE static void Store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
  INFERD_INLINE static Vec Add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  INFERD_INLINE static Vec Sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  INFERD_INLINE static Vec Mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  INFERD_INLINE static Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  INFERD_INLINE static Vec Exp2(Vec x) { return kernels::Exp2(x); }
  INFERD_INLINE static float Sum(Vec v) { return SumLanes(v); }
  INFERD_INLINE static Vec Widen(KvValue format, const std::uint8_t* p) {
    const auto half = [&] { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
    const auto bytes = [&] { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); };
    switch (format) {
      case KvValue::kF16:
        return _mm256_cvtph_ps(half());
      case KvValue::kBf16:
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half()), 16));
      case KvValue::kFp8: {
        // Exponent and mantissa at their places in a half, whose bias is 8 more: 2^8 too small.
        const __m128i bits = _mm_slli_epi16(_mm_cvtepi8_epi16(bytes()), 7);
        const __m128i value = _mm_and_si128(bits, _mm_set1_epi16(static_cast<short>(0xbf80)));
        return _mm256_mul_ps(_mm256_cvtph_ps(value), _mm256_set1_ps(256));
      }
      case KvValue::kInt8:
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes()));
      case KvValue::kF32:
        break;
    }
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  }
};

}  // namespace

void AttentionLatentAvx2(const LatentArgs& args) { AttendLatent<Avx2>(args); }

}  // namespace inferd::kernels
