// SPDX-License-Identifier: Apache-2.0
// Rows are done one after the other, so a row's bits do not depend on its tile; the rows of a tile
// find K and V in the cache. Arithmetic as in kernels.h.
#include "kernels/attention/attention_avx2.h"

#include "kernels/simd_avx2.h"

namespace inferd::kernels {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr float kInfinity = __builtin_inff();

struct Bf16Pages {
  static constexpr bool kScales = false;
  static constexpr int kValueBytes = 2;
  static constexpr int kPerStep = 2;
  INFERD_INLINE static __m256 Add(__m256 f, const std::uint8_t* kv, const float* x) {
    const __m256i pairs = Load(kv);
    f = _mm256_fmadd_ps(Even(pairs), _mm256_broadcast_ss(x), f);
    return _mm256_fmadd_ps(Odd(pairs), _mm256_broadcast_ss(x + 1), f);
  }
};
struct HalfPages {
  static constexpr bool kScales = false;
  static constexpr int kValueBytes = 2;
  static constexpr int kPerStep = 1;
  INFERD_INLINE static __m256 Add(__m256 f, const std::uint8_t* kv, const float* x) {
    return _mm256_fmadd_ps(HalfRow(kv), _mm256_broadcast_ss(x), f);
  }
};
struct FloatPages {
  static constexpr bool kScales = false;
  static constexpr int kValueBytes = 4;
  static constexpr int kPerStep = 1;
  INFERD_INLINE static __m256 Add(__m256 f, const std::uint8_t* kv, const float* x) {
    return _mm256_fmadd_ps(_mm256_castsi256_ps(Load(kv)), _mm256_broadcast_ss(x), f);
  }
};
struct Fp8Pages {
  static constexpr bool kScales = false;
  static constexpr int kValueBytes = 1;
  static constexpr int kPerStep = 1;
  INFERD_INLINE static __m256 Add(__m256 f, const std::uint8_t* kv, const float* x) {
    // Exponent and mantissa at their places in a half, whose bias is 8 more: 2^8 too small.
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kv));
    const __m128i bits = _mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7);
    const __m128i half = _mm_and_si128(bits, _mm_set1_epi16(static_cast<short>(0xbf80)));
    const __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256));
    return _mm256_fmadd_ps(value, _mm256_broadcast_ss(x), f);
  }
};
struct Int8Pages {
  static constexpr bool kScales = true;
  static constexpr int kValueBytes = 1;
  static constexpr int kPerStep = 1;
  INFERD_INLINE static __m256 Add(__m256 f, const std::uint8_t* kv, const float* x) {
    return _mm256_fmadd_ps(SignedByteRow(kv), _mm256_broadcast_ss(x), f);
  }
};

/// Bytes of one step of one token (in K) or of one column (in V).
template <class Pages>
constexpr int kLaneBytes = Pages::kPerStep * Pages::kValueBytes;

struct RowState {
  alignas(32) float o[kMaxHeadDim];
  alignas(32) float s[kSoftmaxTokens];  // scores, then p
  __m256 l;
  float m;
};

// x *= the scales of 32 tokens.
INFERD_INLINE inline void ScaleTokens(const std::uint8_t* scales, float* x) {
  Unroll<4>([&](auto c) INFERD_INLINE {
    const __m256 scale = _mm256_castsi256_ps(Load(scales + c * 32));
    _mm256_store_ps(x + c * 8, _mm256_mul_ps(_mm256_load_ps(x + c * 8), scale));
  });
}

template <class Pages>
void ScorePage(const float* q, std::int64_t head_dim, const std::uint8_t* k, float* s) {
  __m256 f[4];
  Unroll<4>([&](auto c) INFERD_INLINE { f[c] = _mm256_setzero_ps(); });
  for (std::int64_t d = 0; d < head_dim; d += Pages::kPerStep, k += 32 * kLaneBytes<Pages>) {
    Unroll<4>([&](auto c)
                  INFERD_INLINE { f[c] = Pages::Add(f[c], k + c * 8 * kLaneBytes<Pages>, q + d); });
  }
  Unroll<4>([&](auto c) INFERD_INLINE { _mm256_store_ps(s + c * 8, f[c]); });
}

template <class Pages>
void AddValues(const float* p, const std::uint8_t* v, std::int64_t head_dim, float* o) {
  for (std::int64_t d = 0; d < head_dim; d += 16) {
    __m256 f0 = _mm256_load_ps(o + d);
    __m256 f1 = _mm256_load_ps(o + d + 8);
    const std::uint8_t* at = v + d * kLaneBytes<Pages>;
    for (int token = 0; token < kPageTokens; token += Pages::kPerStep) {
      f0 = Pages::Add(f0, at, p + token);
      f1 = Pages::Add(f1, at + 8 * kLaneBytes<Pages>, p + token);
      at += head_dim * kLaneBytes<Pages>;
    }
    _mm256_store_ps(o + d, f0);
    _mm256_store_ps(o + d + 8, f1);
  }
}

// Tokens [begin, end) of the chunk are seen, at least one of them.
void Softmax(
    const AttentionArgs& args, RowState& t, std::int64_t begin, std::int64_t end, int tokens) {
  __m256 top = _mm256_set1_ps(-kInfinity);
  for (int i = 0; i < tokens; i += 8) {
    const __m256 seen =
        _mm256_castsi256_ps(_mm256_andnot_si256(FirstLanes(begin - i), FirstLanes(end - i)));
    __m256 x = _mm256_load_ps(t.s + i);
    if (args.softcap > 0) {
      x = Tanh(_mm256_mul_ps(x, _mm256_set1_ps(args.scale / args.softcap)));
      x = _mm256_mul_ps(x, _mm256_set1_ps(args.softcap * kLog2E));
    } else {
      x = _mm256_mul_ps(x, _mm256_set1_ps(args.scale * kLog2E));
    }
    x = _mm256_blendv_ps(_mm256_set1_ps(-kInfinity), x, seen);
    _mm256_store_ps(t.s + i, x);
    top = _mm256_max_ps(top, x);
  }
  const float chunk_top = MaxLanes(top);
  const float m = t.m > chunk_top ? t.m : chunk_top;
  __m256 sum = _mm256_setzero_ps();
  for (int i = 0; i < tokens; i += 8) {
    const __m256 seen =
        _mm256_castsi256_ps(_mm256_andnot_si256(FirstLanes(begin - i), FirstLanes(end - i)));
    const __m256 e =
        _mm256_and_ps(seen, Exp2(_mm256_sub_ps(_mm256_load_ps(t.s + i), _mm256_set1_ps(m))));
    sum = _mm256_add_ps(sum, e);
    _mm256_store_ps(t.s + i, e);
  }
  if (m > t.m) {
    const __m256 rescale = Exp2(_mm256_set1_ps(t.m - m));
    t.l = _mm256_mul_ps(t.l, rescale);
    for (std::int64_t d = 0; d < args.head_dim; d += 8) {
      _mm256_store_ps(t.o + d, _mm256_mul_ps(_mm256_load_ps(t.o + d), rescale));
    }
  }
  t.l = _mm256_add_ps(t.l, sum);
  t.m = m;
}

void Finish(const AttentionArgs& args, const RowState& t, int row) {
  float l = SumLanes(t.l);
  float factor = 1.0f;
  if (args.sink != nullptr) {
    const float sink = args.sink[row] * kLog2E;
    const float m = t.m > sink ? t.m : sink;
    factor = _mm256_cvtss_f32(Exp2(_mm256_set1_ps(t.m - m)));
    l = l * factor + _mm256_cvtss_f32(Exp2(_mm256_set1_ps(sink - m)));
  }
  const __m256 inverse = _mm256_set1_ps(factor / l);
  for (std::int64_t d = 0; d < args.head_dim; d += 8) {
    _mm256_storeu_ps(args.y[row] + d, _mm256_mul_ps(_mm256_load_ps(t.o + d), inverse));
  }
}

template <class Pages>
void AttendRow(const AttentionArgs& args, int row) {
  RowState t;
  t.l = _mm256_setzero_ps();
  t.m = -kInfinity;
  for (std::int64_t d = 0; d < args.head_dim; d += 8) {
    _mm256_store_ps(t.o + d, _mm256_setzero_ps());
  }
  const std::int64_t end = args.pos[row] + 1;
  const std::int64_t begin = args.window > 0 && end > args.window ? end - args.window : 0;
  const std::int64_t last_page = (end + kPageTokens - 1) / kPageTokens;
  const std::int64_t side_bytes = kPageTokens * args.head_dim * Pages::kValueBytes;
  constexpr int kPages = kSoftmaxTokens / kPageTokens;
  for (std::int64_t base = begin / kSoftmaxTokens * kSoftmaxTokens; base < end;
       base += kSoftmaxTokens) {
    const std::uint8_t* page[kPages] = {};
    int pages = 0;
    for (; pages < kPages && base / kPageTokens + pages < last_page; ++pages) {
      const auto index = static_cast<std::size_t>(args.pages[base / kPageTokens + pages]);
      page[pages] = reinterpret_cast<const std::uint8_t*>(args.base) + index * args.page_bytes;
      ScorePage<Pages>(args.q[row], args.head_dim, page[pages], t.s + pages * kPageTokens);
      if constexpr (Pages::kScales) {
        ScaleTokens(page[pages] + 2 * side_bytes, t.s + pages * kPageTokens);
      }
    }
    Softmax(args, t, begin - base, end - base, pages * kPageTokens);
    for (int i = 0; i < pages; ++i) {
      if constexpr (Pages::kScales) {
        ScaleTokens(page[i] + 2 * side_bytes + 4 * kPageTokens, t.s + i * kPageTokens);
      }
      AddValues<Pages>(t.s + i * kPageTokens, page[i] + side_bytes, args.head_dim, t.o);
    }
  }
  Finish(args, t, row);
}

template <class Pages>
void Attend(const AttentionArgs& args) {
  for (int row = 0; row < args.rows; ++row) {
    AttendRow<Pages>(args, row);
  }
}

}  // namespace

void AttentionBf16Avx2(const AttentionArgs& args) { Attend<Bf16Pages>(args); }

void AttentionHalfAvx2(const AttentionArgs& args) { Attend<HalfPages>(args); }

void AttentionFloatAvx2(const AttentionArgs& args) { Attend<FloatPages>(args); }

void AttentionFp8Avx2(const AttentionArgs& args) { Attend<Fp8Pages>(args); }

void AttentionInt8Avx2(const AttentionArgs& args) { Attend<Int8Pages>(args); }

}  // namespace inferd::kernels
