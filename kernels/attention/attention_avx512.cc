// SPDX-License-Identifier: Apache-2.0
// Attention over pages in the operand order of the products, so that nothing is rearranged when
// read. Bytes moved: K and V of the seen tokens once per tile of query rows.
//
// A masked p is 0, and adding 0 times a finite value changes nothing; a chunk that is masked for a
// row is skipped for it. So tiles, batches and prompt chunks do not change a row's bits. Pages must
// be zeroed when handed out: 0 times a stale NaN would not be 0.
#include "kernels/attention/attention_avx512.h"

#include "kernels/attention/kv_page.h"
#include "kernels/simd_avx512.h"

namespace inferd::kernels {
namespace {

constexpr float kLog2E = 1.44269504f;
constexpr int kPages = kSoftmaxTokens / kPageTokens;  // per softmax chunk
constexpr float kInfinity = __builtin_inff();

/// How a page format is multiplied. A K step is 32 tokens x kPerStep values of d; a V step is d x
/// kPerStep tokens. Operand: 16 lanes of K or V, made once for all rows, or the
/// kPerStep inputs of q or p spread over the lanes.
struct Bf16Fma {
  static constexpr bool kScales = false;
  static constexpr int kValueBytes = 2;
  static constexpr int kPerStep = 2;
  struct Operand {
    __m512 even;
    __m512 odd;
  };
  INFERD_INLINE static Operand Make(const std::uint8_t* kv) {
    const __m512i pairs = _mm512_loadu_si512(kv);
    return {EvenBf16(pairs), OddBf16(pairs)};
  }
  INFERD_INLINE static Operand Spread(const float* x) {
    return {BroadcastFloat(x), BroadcastFloat(x + 1)};
  }
  INFERD_INLINE static __m512 Add(__m512 f, const Operand& kv, const Operand& x) {
    return _mm512_fmadd_ps(kv.odd, x.odd, _mm512_fmadd_ps(kv.even, x.even, f));
  }
};
struct HalfFma {
  static constexpr bool kScales = false;
  static constexpr int kValueBytes = 2;
  static constexpr int kPerStep = 1;
  struct Operand {
    __m512 value;
  };
  INFERD_INLINE static Operand Make(const std::uint8_t* kv) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(kv)))};
  }
  INFERD_INLINE static Operand Spread(const float* x) { return {BroadcastFloat(x)}; }
  INFERD_INLINE static __m512 Add(__m512 f, const Operand& kv, const Operand& x) {
    return _mm512_fmadd_ps(kv.value, x.value, f);
  }
};
struct FloatFma {
  static constexpr bool kScales = false;
  static constexpr int kValueBytes = 4;
  static constexpr int kPerStep = 1;
  struct Operand {
    __m512 value;
  };
  INFERD_INLINE static Operand Make(const std::uint8_t* kv) { return {_mm512_loadu_ps(kv)}; }
  INFERD_INLINE static Operand Spread(const float* x) { return {BroadcastFloat(x)}; }
  INFERD_INLINE static __m512 Add(__m512 f, const Operand& kv, const Operand& x) {
    return _mm512_fmadd_ps(kv.value, x.value, f);
  }
};

struct Fp8Fma : FloatFma {
  static constexpr int kValueBytes = 1;
  INFERD_INLINE static Operand Make(const std::uint8_t* kv) {
    // Exponent and mantissa at their places in a half, whose bias is 8 more: 2^8 too small.
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kv));
    const __m256i bits = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
    const __m256i half = _mm256_and_si256(bits, _mm256_set1_epi16(static_cast<short>(0xbf80)));
    return {_mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256))};
  }
};
struct Int8Fma : FloatFma {
  static constexpr bool kScales = true;
  static constexpr int kValueBytes = 1;
  INFERD_INLINE static Operand Make(const std::uint8_t* kv) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kv));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
  }
};

/// Bytes of one step of one token (in K) or of one column (in V).
template <class Pages>
constexpr int kLaneBytes = Pages::kPerStep * Pages::kValueBytes;

// Lines of the page sides in the order of use: K of this chunk, V of this chunk, K of the next.
// Hardware prefetchers stop at 4 KiB and cannot guess the next page, and softmax reads nothing: so
// lines are asked for in all phases.
template <bool kOn>
struct PageStream {
  static constexpr int kLead = 128;  // lines between request and use
  const std::uint8_t* side[3 * kPages];
  int sides = 0;
  int side_lines = 0;
  int index = 0;  // the side being asked for
  int line = 0;   // and the line in it

  void Start(int lines) {
    side_lines = lines;
    line = kLead % lines;
    index = kLead / lines;
  }
  INFERD_INLINE void Lines(int count) {
    if constexpr (kOn) {
      for (int i = 0; i < count && index < sides; ++i) {
        PrefetchSecond(side[index] + line * 64);
        if (++line == side_lines) {
          line = 0;
          ++index;
        }
      }
    }
  }
  // `used` sides are done with; what follows keeps its lead.
  void Advance(int used) {
    index -= used;
    if (index * side_lines + line < kLead) {
      Start(side_lines);
    }
  }
};

/// Everything a tile keeps between chunks. Rows past args.rows repeat the last one and are not
/// stored.
template <int kRows>
struct TileState {
  alignas(64) float o[kRows * kMaxHeadDim];  // [rows, head_dim]
  alignas(64) float l[kRows][16];
  alignas(64) float s[kRows][kSoftmaxTokens];  // scores, then p
  alignas(64) float q[kRows * kMaxHeadDim];    // [rows, head_dim]
  float m[kRows];
  std::int64_t end[kRows];    // first token not seen
  std::int64_t begin[kRows];  // first token seen
};

// s[r][0..32) = q[r] . K of one page.
template <class Pages, int kRows, class Stream>
INFERD_INLINE inline void ScorePage(
    const float* q, std::int64_t head_dim, const std::uint8_t* k, Stream& stream, float* s) {
  __m512 f[2][kRows];
  Unroll<kRows>([&](auto r) INFERD_INLINE { f[0][r] = f[1][r] = _mm512_setzero_ps(); });
  const std::uint8_t* scales = k + 2 * kPageTokens * head_dim * Pages::kValueBytes;
  for (std::int64_t d = 0; d < head_dim; d += Pages::kPerStep, k += 32 * kLaneBytes<Pages>) {
    stream.Lines(kLaneBytes<Pages> > 1 ? kLaneBytes<Pages> / 2 : static_cast<int>(d & 1));
    const typename Pages::Operand k0 = Pages::Make(k);
    const typename Pages::Operand k1 = Pages::Make(k + 16 * kLaneBytes<Pages>);
    Unroll<kRows>([&](auto r) INFERD_INLINE {
      const typename Pages::Operand x = Pages::Spread(q + r * head_dim + d);
      f[0][r] = Pages::Add(f[0][r], k0, x);
      f[1][r] = Pages::Add(f[1][r], k1, x);
    });
  }
  if constexpr (Pages::kScales) {
    const __m512 scale[2] = {_mm512_loadu_ps(scales), _mm512_loadu_ps(scales + 64)};
    Unroll<kRows>([&](auto r) INFERD_INLINE {
      f[0][r] = _mm512_mul_ps(f[0][r], scale[0]);
      f[1][r] = _mm512_mul_ps(f[1][r], scale[1]);
    });
  }
  Unroll<kRows>([&](auto r) INFERD_INLINE {
    _mm512_store_ps(s + r * kSoftmaxTokens, f[0][r]);
    _mm512_store_ps(s + r * kSoftmaxTokens + 16, f[1][r]);
  });
}

// o[r][column .. column + 16 kColumns) += p[r] . V over the chunk's pages.
template <class Pages, int kRows, int kColumns, class Stream>
INFERD_INLINE inline void AddValues(const float* p,
                                    const std::uint8_t* const* v_pages,
                                    int pages,
                                    std::int64_t head_dim,
                                    std::int64_t column,
                                    Stream& stream,
                                    float* o) {
  __m512 f[kColumns][kRows];
  Unroll<kRows>([&](auto r) INFERD_INLINE {
    Unroll<kColumns>([&](auto c) INFERD_INLINE {
      f[c][r] = _mm512_load_ps(o + r * head_dim + column + c * 16);
    });
  });
  constexpr int kSteps = kPageTokens / Pages::kPerStep;
  for (int page = 0; page < pages; ++page) {
    const std::uint8_t* v = v_pages[page] + column * kLaneBytes<Pages>;
    for (int step = 0; step < kSteps;
         ++step, v += head_dim * kLaneBytes<Pages>, p += Pages::kPerStep) {
      typename Pages::Operand value[kColumns];
      Unroll<kColumns>(
          [&](auto c) INFERD_INLINE { value[c] = Pages::Make(v + c * 16 * kLaneBytes<Pages>); });
      stream.Lines((kColumns * kLaneBytes<Pages> + 3) / 4);
      Unroll<kRows>([&](auto r) INFERD_INLINE {
        const typename Pages::Operand x = Pages::Spread(p + r * kSoftmaxTokens);
        Unroll<kColumns>([&](auto c) INFERD_INLINE { f[c][r] = Pages::Add(f[c][r], value[c], x); });
      });
    }
  }
  Unroll<kRows>([&](auto r) INFERD_INLINE {
    Unroll<kColumns>([&](auto c) INFERD_INLINE {
      _mm512_store_ps(o + r * head_dim + column + c * 16, f[c][r]);
    });
  });
}

// Online softmax of one row over the chunk at `base`: s becomes p, o and l are rescaled.
template <class State, class Stream>
INFERD_INLINE inline void SoftmaxRow(
    const AttentionArgs& args, State& t, int r, std::int64_t base, int tokens, Stream& stream) {
  const std::int64_t end =
      t.end[r] - base;  // of the chunk's tokens, those in [begin, end) are seen
  const std::int64_t begin = t.begin[r] - base;
  float* s = t.s[r];
  if (end <= 0 || begin >= tokens) {
    __builtin_memset(s, 0, sizeof t.s[r]);
    return;
  }
  __m512 top = _mm512_set1_ps(-kInfinity);
  for (int i = 0; i < tokens; i += 16) {
    stream.Lines(2);
    const __mmask16 seen = static_cast<__mmask16>(FirstLanes(end - i) & ~FirstLanes(begin - i));
    __m512 x = _mm512_load_ps(s + i);
    if (args.softcap > 0) {
      x = Tanh(_mm512_mul_ps(x, _mm512_set1_ps(args.scale / args.softcap)));
      x = _mm512_mul_ps(x, _mm512_set1_ps(args.softcap * kLog2E));
    } else {
      x = _mm512_mul_ps(x, _mm512_set1_ps(args.scale * kLog2E));
    }
    x = _mm512_mask_mov_ps(_mm512_set1_ps(-kInfinity), seen, x);
    _mm512_store_ps(s + i, x);
    top = _mm512_max_ps(top, x);
  }
  const float chunk_top = _mm512_reduce_max_ps(top);
  const float m = t.m[r] > chunk_top ? t.m[r] : chunk_top;
  const __m512 vm = _mm512_set1_ps(m);
  __m512 sum = _mm512_setzero_ps();
  for (int i = 0; i < tokens; i += 16) {
    stream.Lines(2);
    const __mmask16 seen = static_cast<__mmask16>(FirstLanes(end - i) & ~FirstLanes(begin - i));
    const __m512 e = _mm512_maskz_mov_ps(seen, Exp2(_mm512_sub_ps(_mm512_load_ps(s + i), vm)));
    sum = _mm512_add_ps(sum, e);
    _mm512_store_ps(s + i, e);
  }
  __m512 l = _mm512_load_ps(t.l[r]);
  const float rescale = m > t.m[r] ? _mm512_cvtss_f32(Exp2(_mm512_set1_ps(t.m[r] - m))) : 1.0f;
  if (rescale != 1.0f) {  // skipping a multiplication by exactly 1 changes nothing
    const __m512 v = _mm512_set1_ps(rescale);
    l = _mm512_mul_ps(l, v);
    float* o = t.o + r * args.head_dim;
    for (std::int64_t d = 0; d < args.head_dim; d += 16) {
      _mm512_store_ps(o + d, _mm512_mul_ps(_mm512_load_ps(o + d), v));
    }
  }
  _mm512_store_ps(t.l[r], _mm512_add_ps(l, sum));
  t.m[r] = m;
}

// y = o / l; a sink adds its exponential to l.
template <class State>
INFERD_INLINE inline void FinishRow(const AttentionArgs& args, const State& t, int r) {
  float l = SumLanes(_mm512_load_ps(t.l[r]));
  float factor = 1.0f;
  if (args.sink != nullptr) {
    const float sink = args.sink[r] * kLog2E;
    const float m = t.m[r] > sink ? t.m[r] : sink;
    factor = _mm512_cvtss_f32(Exp2(_mm512_set1_ps(t.m[r] - m)));
    l = l * factor + _mm512_cvtss_f32(Exp2(_mm512_set1_ps(sink - m)));
  }
  const __m512 inverse = _mm512_set1_ps(factor / l);
  const float* o = t.o + r * args.head_dim;
  for (std::int64_t d = 0; d < args.head_dim; d += 16) {
    _mm512_storeu_ps(args.y[r] + d, _mm512_mul_ps(_mm512_load_ps(o + d), inverse));
  }
}

template <int kRows>
INFERD_INLINE inline void StartTile(const AttentionArgs& args, TileState<kRows>& t) {
  __builtin_memset(t.o, 0, static_cast<std::size_t>(kRows * args.head_dim) * 4);
  __builtin_memset(t.l, 0, sizeof t.l);
  for (int r = 0; r < kRows; ++r) {
    const int source = r < args.rows ? r : args.rows - 1;
    t.m[r] = -kInfinity;
    t.end[r] = args.pos[source] + 1;
    t.begin[r] = args.window > 0 && t.end[r] > args.window ? t.end[r] - args.window : 0;
    for (std::int64_t d = 0; d < args.head_dim; d += 16) {
      _mm512_store_ps(t.q + r * args.head_dim + d, _mm512_loadu_ps(args.q[source] + d));
    }
  }
}

// p *= the scales of V, [rows, tokens of the chunk].
template <int kRows>
INFERD_INLINE inline void ScaleValues(const std::uint8_t* const* v_pages,
                                      int pages,
                                      std::int64_t head_dim,
                                      float* p) {
  for (int i = 0; i < 2 * pages; ++i) {
    const std::uint8_t* scales = v_pages[i / 2] + kPageTokens * head_dim + 4 * kPageTokens;
    const __m512 scale = _mm512_loadu_ps(scales + i % 2 * 64);
    Unroll<kRows>([&](auto r) INFERD_INLINE {
      float* at = p + r * kSoftmaxTokens + i * 16;
      _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), scale));
    });
  }
}

template <class Pages, int kRows, class Stream>
INFERD_INLINE inline void AddChunk(const AttentionArgs& args,
                                   TileState<kRows>& t,
                                   int pages,
                                   Stream& stream) {
  // As many columns as keep accumulators and operands within the register file.
  constexpr int kOperands = sizeof(typename Pages::Operand) / 64;
  constexpr int kColumns = (kRows + kOperands) * 4 <= 32 ? 4 : 2;
  const float* p = t.s[0];
  const std::uint8_t* const* v = stream.side + pages;
  if constexpr (Pages::kScales) {
    ScaleValues<kRows>(v, pages, args.head_dim, t.s[0]);
  }
  std::int64_t d = 0;
  for (; d + kColumns * 16 <= args.head_dim; d += kColumns * 16) {
    AddValues<Pages, kRows, kColumns>(p, v, pages, args.head_dim, d, stream, t.o);
  }
  for (; d < args.head_dim; d += 16) {
    AddValues<Pages, kRows, 1>(p, v, pages, args.head_dim, d, stream, t.o);
  }
}

template <class Pages, int kRows, bool kStream>
void AttendTile(const AttentionArgs& args) {
  TileState<kRows> t;
  PageStream<kStream> stream;
  StartTile(args, t);
  std::int64_t longest = 0;
  std::int64_t first = t.end[0];
  for (int r = 0; r < kRows; ++r) {
    longest = t.end[r] > longest ? t.end[r] : longest;
    first = t.begin[r] < first ? t.begin[r] : first;
  }
  const std::int64_t side_bytes = kPageTokens * args.head_dim * Pages::kValueBytes;
  const std::int64_t last_page = (longest + kPageTokens - 1) / kPageTokens;
  stream.Start(static_cast<int>(side_bytes / 64));
  const auto page_at = [&](std::int64_t page) INFERD_INLINE {
    return reinterpret_cast<const std::uint8_t*>(args.base) +
           static_cast<std::size_t>(args.pages[page]) * args.page_bytes;
  };
  for (std::int64_t base = first / kSoftmaxTokens * kSoftmaxTokens; base < longest;
       base += kSoftmaxTokens) {
    const std::int64_t page = base / kPageTokens;
    const int pages = last_page - page < kPages ? static_cast<int>(last_page - page) : kPages;
    for (int i = 0; i < pages; ++i) {
      stream.side[i] = page_at(page + i);
      stream.side[pages + i] = stream.side[i] + side_bytes;
    }
    stream.sides = 2 * pages;
    for (std::int64_t next = page + pages; next < last_page && stream.sides < 2 * pages + kPages;
         ++next) {
      stream.side[stream.sides++] = page_at(next);
    }
    for (int i = 0; i < pages; ++i) {
      ScorePage<Pages, kRows>(t.q, args.head_dim, stream.side[i], stream, &t.s[0][i * kPageTokens]);
    }
    for (int r = 0; r < kRows; ++r) {
      SoftmaxRow(args, t, r, base, pages * kPageTokens, stream);
    }
    AddChunk<Pages>(args, t, pages, stream);
    stream.Advance(2 * pages);
  }
  for (int r = 0; r < args.rows; ++r) {
    FinishRow(args, t, r);
  }
}

template <class Pages, int kRows>
void AttendRows(const AttentionArgs& args) {
  if (args.stream) {
    AttendTile<Pages, kRows, true>(args);
  } else {
    AttendTile<Pages, kRows, false>(args);
  }
}

template <class Pages>
void Attend(const AttentionArgs& args) {
  switch (args.rows) {
    case 1:
      return AttendRows<Pages, 1>(args);
    case 2:
      return AttendRows<Pages, 2>(args);
    case 3:
    case 4:
      return AttendRows<Pages, 4>(args);
    case 5:
    case 6:
    case 7:
      return AttendRows<Pages, 7>(args);
    case 8:
      return AttendRows<Pages, 8>(args);
    default:
      return AttendRows<Pages, kAttentionRows>(args);
  }
}

}  // namespace

void AttentionBf16Avx512(const AttentionArgs& args) { Attend<Bf16Fma>(args); }

void AttentionHalfAvx512(const AttentionArgs& args) { Attend<HalfFma>(args); }

void AttentionFloatAvx512(const AttentionArgs& args) { Attend<FloatFma>(args); }

void AttentionFp8Avx512(const AttentionArgs& args) { Attend<Fp8Fma>(args); }

void AttentionInt8Avx512(const AttentionArgs& args) { Attend<Int8Fma>(args); }

}  // namespace inferd::kernels
