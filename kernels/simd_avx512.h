// SPDX-License-Identifier: Apache-2.0
// Small vector helpers of the AVX-512 kernels. Everything here and in the files that include it has
// internal linkage: a function compiled for this instruction set must never be picked by the linker
// for another.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#define INFERD_INLINE __attribute__((always_inline))

namespace inferd::kernels {
namespace {

/// An integer as a type, so that register arrays are only ever indexed by constants.
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

/// f(0), f(1), ... f(kCount - 1) with constants: gcc then keeps arrays of registers in registers.
template <int kCount, class F>
INFERD_INLINE inline void Unroll(F&& f) {
  UnrollFrom<0, kCount>(f);
}

INFERD_INLINE inline __m512i Load(const void* p) { return _mm512_load_si512(p); }

INFERD_INLINE inline __m512i Broadcast4(const void* p) {
  int value;
  __builtin_memcpy(&value, p, 4);
  return _mm512_set1_epi32(value);
}

INFERD_INLINE inline __m512 BroadcastFloat(const void* p) {
  float value;
  __builtin_memcpy(&value, p, 4);
  return _mm512_set1_ps(value);
}

/// The two values of 16 bf16 pairs, as float.
INFERD_INLINE inline __m512 OddBf16(__m512i pairs) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
INFERD_INLINE inline __m512 EvenBf16(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

INFERD_INLINE inline __m512 HalfRow(const std::uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}
INFERD_INLINE inline __m512 ByteRow(const std::uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
}
INFERD_INLINE inline __m512 SignedByteRow(const std::uint8_t* p) {
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p))));
}

INFERD_INLINE inline void Prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

/// Into the second-level cache: what is asked for from memory does not hold a miss buffer of the
/// first on its way.
INFERD_INLINE inline void PrefetchSecond(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

/// Lane mask of the first `count` of 16 lanes, count clamped to 0..16.
INFERD_INLINE inline __mmask16 FirstLanes(std::int64_t count) {
  return count >= 16 ? __mmask16(0xffff) : count <= 0 ? __mmask16(0) : __mmask16((1u << count) - 1);
}

/// Halves onto halves: the order of every horizontal sum here.
INFERD_INLINE inline float SumLanes(__m512 v) {
  __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/// 2^x with a relative error about 2e-7; 0 below -150.
INFERD_INLINE inline __m512 Exp2(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-150.0f));
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(1.5403530e-4f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.3333558e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.6181291e-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

/// 1 / (1 + exp(-x)), no overflow on either side.
INFERD_INLINE inline __m512 Sigmoid(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512 e = Exp2(_mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(-1.44269504f)));
  const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  return _mm512_div_ps(_mm512_mask_mov_ps(one, negative, e), _mm512_add_ps(one, e));
}

/// tanh(x) = 2 sigmoid(2x) - 1, absolute error about 2e-7.
INFERD_INLINE inline __m512 Tanh(__m512 x) {
  const __m512 s = Sigmoid(_mm512_add_ps(x, x));
  return _mm512_sub_ps(_mm512_add_ps(s, s), _mm512_set1_ps(1.0f));
}

}  // namespace
}  // namespace inferd::kernels
