// SPDX-License-Identifier: Apache-2.0
#include "kernels/rows/rows_avx2.h"

#include "kernels/rows/rows_ref.h"
#include "kernels/simd_avx2.h"

namespace inferd::kernels {
namespace {

INFERD_INLINE inline __m256 LoadFirst(const float* p, std::int64_t count) {
  return count >= 8   ? _mm256_loadu_ps(p)
         : count <= 0 ? _mm256_setzero_ps()
                      : _mm256_maskload_ps(p, FirstLanes(count));
}

INFERD_INLINE inline void StoreFirst(float* p, std::int64_t count, __m256 v) {
  if (count >= 8) {
    _mm256_storeu_ps(p, v);
  } else {
    _mm256_maskstore_ps(p, FirstLanes(count), v);
  }
}

INFERD_INLINE inline int SumInts(__m256i v) {
  __m128i b = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}

}  // namespace

void QuantizeAvx2(const float* x, std::int64_t k, ActBlock* out) {
  for (std::int64_t i = 0; i < k; i += 32, ++out) {
    __m256 v[4];
    __m256i q[4];
    Unroll<4>([&](auto r) INFERD_INLINE { v[r] = LoadFirst(x + i + r * 8, k - i - r * 8); });
    const float amax = MaxLanes(
        _mm256_max_ps(_mm256_max_ps(Abs(v[0]), Abs(v[1])), _mm256_max_ps(Abs(v[2]), Abs(v[3]))));
    const __m256 inverse = _mm256_set1_ps(amax > 0x1p-110f ? 127.0f / amax : 0.0f);
    Unroll<4>([&](auto r)
                  INFERD_INLINE { q[r] = _mm256_cvtps_epi32(_mm256_mul_ps(v[r], inverse)); });
    const int low = SumInts(_mm256_add_epi32(q[0], q[1]));
    const int all = low + SumInts(_mm256_add_epi32(q[2], q[3]));
    // The packs interleave 128-bit halves; the permutation puts the eight quads in order.
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    Store(out->q, _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    out->d = amax * (1.0f / 127.0f);
    out->s = -out->d * static_cast<float>(all);
    out->n = -128 * all;
    out->n_lo = -128 * low;
  }
}

void RmsNormAvx2(const float* x, const float* weight, float eps, std::int64_t k, float* y) {
  __m256 s[4];
  Unroll<4>([&](auto r) INFERD_INLINE { s[r] = _mm256_setzero_ps(); });
  for (std::int64_t i = 0; i < k; i += 32) {
    Unroll<4>([&](auto r) INFERD_INLINE {
      const __m256 v = LoadFirst(x + i + r * 8, k - i - r * 8);
      s[r] = _mm256_fmadd_ps(v, v, s[r]);
    });
  }
  const __m256 sum = _mm256_add_ps(_mm256_add_ps(s[0], s[2]), _mm256_add_ps(s[1], s[3]));
  const float mean = SumLanes(sum) / static_cast<float>(k);
  const __m256 inverse = _mm256_set1_ps(1.0f / __builtin_sqrtf(mean + eps));
  for (std::int64_t i = 0; i < k; i += 8) {
    __m256 v = _mm256_mul_ps(LoadFirst(x + i, k - i), inverse);
    if (weight != nullptr) {
      v = _mm256_mul_ps(v, LoadFirst(weight + i, k - i));
    }
    StoreFirst(y + i, k - i, v);
  }
}

void GateMulAvx2(Gate kind, const float* gate, const float* up, std::int64_t n, float* y) {
  if (kind == Gate::kGelu) {
    return GateMulScalar(kind, gate, up, n, y);
  }
  for (std::int64_t i = 0; i < n; i += 8) {
    const __m256 a = LoadFirst(gate + i, n - i);
    __m256 inner = a;
    if (kind == Gate::kGeluTanh) {
      const __m256 cubic =
          _mm256_fmadd_ps(_mm256_mul_ps(a, a), _mm256_set1_ps(0.044715f), _mm256_set1_ps(1.0f));
      inner = _mm256_mul_ps(_mm256_mul_ps(a, cubic), _mm256_set1_ps(1.5957691216f));
    }
    StoreFirst(
        y + i, n - i, _mm256_mul_ps(_mm256_mul_ps(a, Sigmoid(inner)), LoadFirst(up + i, n - i)));
  }
}

void AddAvx2(float* x, const float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 8) {
    StoreFirst(x + i, n - i, _mm256_add_ps(LoadFirst(x + i, n - i), LoadFirst(y + i, n - i)));
  }
}

void AxpyAvx2(float scale, const float* x, std::int64_t n, float* y) {
  const __m256 s = _mm256_set1_ps(scale);
  for (std::int64_t i = 0; i < n; i += 8) {
    StoreFirst(y + i, n - i, _mm256_fmadd_ps(s, LoadFirst(x + i, n - i), LoadFirst(y + i, n - i)));
  }
}

}  // namespace inferd::kernels
