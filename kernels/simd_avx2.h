// SPDX-License-Identifier: Apache-2.0
// Small vector helpers of the AVX2 kernels. Internal linkage throughout, as in simd_avx512.h.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#define INFERD_INLINE __attribute__((always_inline))

namespace inferd::kernels {
namespace {

template <int kValue>
struct Const {
  INFERD_INLINE constexpr operator int() const {
    return kValue;
  }  // NOLINT(google-explicit-constructor)
};

template <int kFrom, int kCount, class F>
INFERD_INLINE inline void UnrollFrom(F&& f) {
  if constexpr (kCount == 1) {
    f(Const<kFrom>{});
  } else if constexpr (kCount > 1) {
    UnrollFrom<kFrom, kCount / 2>(f);
    UnrollFrom<kFrom + kCount / 2, kCount - kCount / 2>(f);
  }
}

template <int kCount, class F>
INFERD_INLINE inline void Unroll(F&& f) {
  UnrollFrom<0, kCount>(f);
}

INFERD_INLINE inline __m256i Load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
INFERD_INLINE inline void Store(void* p, __m256i v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}
INFERD_INLINE inline __m256i Broadcast4(const void* p) {
  int value;
  __builtin_memcpy(&value, p, 4);
  return _mm256_set1_epi32(value);
}
INFERD_INLINE inline void Prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

/// 8 half, uint8 or int8 values as float.
INFERD_INLINE inline __m256 HalfRow(const std::uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
INFERD_INLINE inline __m256 ByteRow(const std::uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
INFERD_INLINE inline __m256 SignedByteRow(const std::uint8_t* p) {
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

/// The two values of eight bf16 pairs, as float.
INFERD_INLINE inline __m256 Odd(__m256i pairs) {
  return _mm256_castsi256_ps(
      _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
INFERD_INLINE inline __m256 Even(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}

INFERD_INLINE inline __m256 Abs(__m256 v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }

/// Halves onto halves: the order of every horizontal sum here.
INFERD_INLINE inline float SumLanes(__m256 v) {
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
INFERD_INLINE inline float MaxLanes(__m256 v) {
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

/// 2^x for x <= 127 with a relative error about 2e-7; 0 below -126.
INFERD_INLINE inline __m256 Exp2(__m256 x) {
  const __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(-126.0f), _CMP_LT_OQ);
  x = _mm256_max_ps(x, _mm256_set1_ps(-126.0f));
  const __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 f = _mm256_sub_ps(x, n);
  __m256 p = _mm256_set1_ps(1.5403530e-4f);
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.3333558e-3f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(9.6181291e-3f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(5.5504109e-2f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(2.4022651e-1f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(6.9314718e-1f));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
  const __m256i power =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_andnot_ps(tiny, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
}

/// 1 / (1 + exp(-x)), no overflow on either side.
INFERD_INLINE inline __m256 Sigmoid(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 e = Exp2(_mm256_mul_ps(Abs(x), _mm256_set1_ps(-1.44269504f)));
  const __m256 negative = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);
  return _mm256_div_ps(_mm256_blendv_ps(one, e, negative), _mm256_add_ps(one, e));
}

INFERD_INLINE inline __m256 Tanh(__m256 x) {
  const __m256 s = Sigmoid(_mm256_add_ps(x, x));
  return _mm256_sub_ps(_mm256_add_ps(s, s), _mm256_set1_ps(1.0f));
}

/// All ones in the lanes below `count`.
INFERD_INLINE inline __m256i FirstLanes(std::int64_t count) {
  const int bound = count > 8 ? 8 : count < 0 ? 0 : static_cast<int>(count);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(bound), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

}  // namespace
}  // namespace inferd::kernels
