// SPDX-License-Identifier: Apache-2.0
#include "kernels/rows/rows_avx512.h"

#include "kernels/rows/rows_ref.h"
#include "kernels/simd_avx512.h"

namespace inferd::kernels {
namespace {

// Round to nearest even; |q| <= 127. A block whose largest value is below 2^-110 becomes all zeros.
INFERD_INLINE inline void QuantBlock(__m512 x0, __m512 x1, ActBlock* out) {
  const float amax = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(x0), _mm512_abs_ps(x1)));
  const float d = amax * (1.0f / 127.0f);
  const __m512 inverse = _mm512_set1_ps(amax > 0x1p-110f ? 127.0f / amax : 0.0f);
  const __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, inverse));
  const __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, inverse));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out->q), _mm512_cvtsepi32_epi8(q0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out->q + 16), _mm512_cvtsepi32_epi8(q1));
  const int low = _mm512_reduce_add_epi32(q0);
  const int all = low + _mm512_reduce_add_epi32(q1);
  out->d = d;
  out->s = -d * static_cast<float>(all);
  out->n = -128 * all;
  out->n_lo = -128 * low;
}

// a * sigmoid(slope * a) in both vectorised kinds.
INFERD_INLINE inline __m512 GateValue(Gate kind, __m512 a) {
  __m512 inner = a;
  if (kind == Gate::kGeluTanh) {
    const __m512 cubic =
        _mm512_fmadd_ps(_mm512_mul_ps(a, a), _mm512_set1_ps(0.044715f), _mm512_set1_ps(1.0f));
    inner = _mm512_mul_ps(_mm512_mul_ps(a, cubic), _mm512_set1_ps(1.5957691216f));
  }
  return _mm512_mul_ps(a, Sigmoid(inner));
}

}  // namespace

void QuantizeAvx512(const float* x, std::int64_t k, ActBlock* out) {
  for (std::int64_t i = 0; i < k; i += 32, ++out) {
    QuantBlock(_mm512_maskz_loadu_ps(FirstLanes(k - i), x + i),
               _mm512_maskz_loadu_ps(FirstLanes(k - i - 16), x + i + 16),
               out);
  }
}

void RmsNormAvx512(const float* x, const float* weight, float eps, std::int64_t k, float* y) {
  __m512 s0 = _mm512_setzero_ps();
  __m512 s1 = s0;
  for (std::int64_t i = 0; i < k; i += 32) {
    const __m512 a = _mm512_maskz_loadu_ps(FirstLanes(k - i), x + i);
    const __m512 b = _mm512_maskz_loadu_ps(FirstLanes(k - i - 16), x + i + 16);
    s0 = _mm512_fmadd_ps(a, a, s0);
    s1 = _mm512_fmadd_ps(b, b, s1);
  }
  const float mean = SumLanes(_mm512_add_ps(s0, s1)) / static_cast<float>(k);
  const __m512 inverse = _mm512_set1_ps(1.0f / __builtin_sqrtf(mean + eps));
  for (std::int64_t i = 0; i < k; i += 16) {
    const __mmask16 lanes = FirstLanes(k - i);
    __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), inverse);
    if (weight != nullptr) {
      v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(lanes, weight + i));
    }
    _mm512_mask_storeu_ps(y + i, lanes, v);
  }
}

void GateMulAvx512(Gate kind, const float* gate, const float* up, std::int64_t n, float* y) {
  if (kind == Gate::kGelu) {
    return GateMulScalar(kind, gate, up, n, y);
  }
  for (std::int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = FirstLanes(n - i);
    const __m512 g = GateValue(kind, _mm512_maskz_loadu_ps(lanes, gate + i));
    _mm512_mask_storeu_ps(y + i, lanes, _mm512_mul_ps(g, _mm512_maskz_loadu_ps(lanes, up + i)));
  }
}

void AddAvx512(float* x, const float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = FirstLanes(n - i);
    const __m512 sum =
        _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, x + i), _mm512_maskz_loadu_ps(lanes, y + i));
    _mm512_mask_storeu_ps(x + i, lanes, sum);
  }
}

void AxpyAvx512(float scale, const float* x, std::int64_t n, float* y) {
  const __m512 s = _mm512_set1_ps(scale);
  for (std::int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = FirstLanes(n - i);
    const __m512 v = _mm512_fmadd_ps(
        s, _mm512_maskz_loadu_ps(lanes, x + i), _mm512_maskz_loadu_ps(lanes, y + i));
    _mm512_mask_storeu_ps(y + i, lanes, v);
  }
}

}  // namespace inferd::kernels
