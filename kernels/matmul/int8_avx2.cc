// SPDX-License-Identifier: Apache-2.0
// Products with int8 forms on AVX2: a chunk of a panel is decoded to bytes in the first-level cache
// and used by tiles of up to 4 tokens x 8 rows. vpmaddubsw saturates on full bytes, so a byte is
// multiplied as two nibbles: 8 groups of a nibble times an int8 stay below 2^15, and the sums are
// exact. Bytes moved: the panel once per 512 rows.
#include "kernels/matmul/matmul_avx2.h"
#include "kernels/matmul/store_avx2.h"

namespace inferd::kernels {
namespace {

constexpr int kScaleFloats = 4 * kPanelRows;  // d, d of k >= 16, min, min of k >= 16
constexpr int kScaleBytes = kScaleFloats * 4;

/// Which nibbles of the decoded bytes can be non-zero.
enum class Nibbles { kBoth, kHigh, kLow };

constexpr Nibbles NibblesOf(PackForm form) {
  return form == PackForm::kQ4    ? Nibbles::kHigh
         : form == PackForm::kQ4K ? Nibbles::kLow
                                  : Nibbles::kBoth;
}

constexpr bool HasBytes(PackForm form) {
  return form == PackForm::kQ8 || form >= PackForm::kByteScale;
}

template <PackForm kForm>
INFERD_INLINE inline void DecodeScales(const std::uint8_t* head,
                                       const std::uint8_t* block,
                                       float* out) {
  for (int octet = 0; octet < 4; ++octet) {
    const int row = octet * 8;
    const auto plain = [&](int field, int place) INFERD_INLINE {
      const __m256 v =
          _mm256_loadu_ps(reinterpret_cast<const float*>(block) + field * kPanelRows + row);
      _mm256_storeu_ps(out + place * kPanelRows + row, v);
    };
    if constexpr (kForm == PackForm::kQ4K || kForm == PackForm::kQ5K) {
      _mm256_storeu_ps(out + row, _mm256_mul_ps(HalfRow(head + 2 * row), ByteRow(block + row)));
      _mm256_storeu_ps(out + 2 * kPanelRows + row,
                       _mm256_mul_ps(HalfRow(head + 64 + 2 * row), ByteRow(block + 32 + row)));
    } else if constexpr (kForm == PackForm::kQ6K) {
      const __m256 d = HalfRow(head + 2 * row);
      _mm256_storeu_ps(out + row, _mm256_mul_ps(d, SignedByteRow(block + row)));
      _mm256_storeu_ps(out + kPanelRows + row, _mm256_mul_ps(d, SignedByteRow(block + 32 + row)));
    } else if constexpr (kForm < PackForm::kByteScale) {
      _mm256_storeu_ps(out + row, HalfRow(block + 2 * row));
    } else {
      plain(0, 0);
      if constexpr (kForm == PackForm::kByteScaleMin) {
        plain(1, 2);
      } else if constexpr (kForm == PackForm::kByteTwo) {
        plain(1, 1);
      } else if constexpr (kForm == PackForm::kByteTwoMin) {
        plain(1, 1);
        plain(2, 2);
        plain(3, 3);
      }
    }
  }
}

// Planes to 1024 bytes in group order, shifted as layout.h says.
template <PackForm kForm>
INFERD_INLINE inline void DecodeQuants(const std::uint8_t* q, std::uint8_t* out) {
  const __m256i low = _mm256_set1_epi8(0x0f);
  for (int g = 0; g < 8; ++g) {
    for (int lane = 0; lane < 128; lane += 32) {
      const __m256i packed = Load(q + (g & 3) * 128 + lane);
      const __m256i nibble = _mm256_and_si256(g < 4 ? packed : _mm256_srli_epi16(packed, 4), low);
      __m256i u = nibble;
      if constexpr (kForm == PackForm::kQ4) {
        u = _mm256_slli_epi16(nibble, 4);
      } else if constexpr (kForm == PackForm::kQ5 || kForm == PackForm::kQ5K) {
        const __m256i bits = _mm256_srl_epi16(Load(q + 512 + lane), _mm_cvtsi32_si128(g));
        const __m256i bit = _mm256_and_si256(bits, _mm256_set1_epi8(1));
        u = _mm256_or_si256(_mm256_slli_epi16(nibble, 1), bit);
        u = kForm == PackForm::kQ5 ? _mm256_slli_epi16(u, 3) : u;
      } else if constexpr (kForm == PackForm::kQ6K) {
        const __m256i bits =
            _mm256_srl_epi16(Load(q + 512 + (g / 4) * 128 + lane), _mm_cvtsi32_si128(2 * (g & 3)));
        const __m256i two = _mm256_and_si256(bits, _mm256_set1_epi8(3));
        u = _mm256_slli_epi16(_mm256_or_si256(_mm256_slli_epi16(nibble, 2), two), 2);
      }
      Store(out + g * 128 + lane, u);
    }
  }
}

struct TileInput {
  const std::uint8_t* q;  // 1024 bytes in group order per block
  std::ptrdiff_t q_step;
  const float* scales;  // kScaleFloats per block
  std::int64_t blocks;
  const ActBlock* a;
  std::ptrdiff_t lda;
  float* c;  // [tokens, 32], the 8 rows in hand are loaded, continued and stored
  int octet;
};

// Exact dot products of kGroups groups from group kFirst: 8 rows x kTokens tokens, int32.
template <Nibbles kNibbles, int kTokens, int kFirst, int kGroups>
INFERD_INLINE inline void Dot(const std::uint8_t* q,
                              const ActBlock* a,
                              std::ptrdiff_t lda,
                              __m256i (&dot)[kTokens]) {
  const __m256i mask = _mm256_set1_epi8(0x0f);
  __m256i low[kTokens];
  __m256i high[kTokens];
  Unroll<kTokens>([&](auto t) INFERD_INLINE { low[t] = high[t] = _mm256_setzero_si256(); });
  Unroll<kGroups>([&](auto i) INFERD_INLINE {
    constexpr int g = kFirst + i;
    const __m256i u = Load(q + g * 128);
    const __m256i u_low = kNibbles == Nibbles::kLow ? u : _mm256_and_si256(u, mask);
    const __m256i u_high = _mm256_and_si256(_mm256_srli_epi16(u, 4), mask);
    Unroll<kTokens>([&](auto t) INFERD_INLINE {
      const __m256i x = Broadcast4(a[t * lda].q + 4 * g);
      if constexpr (kNibbles != Nibbles::kHigh) {
        low[t] = _mm256_add_epi16(low[t], _mm256_maddubs_epi16(u_low, x));
      }
      if constexpr (kNibbles != Nibbles::kLow) {
        high[t] = _mm256_add_epi16(high[t], _mm256_maddubs_epi16(u_high, x));
      }
    });
  });
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    dot[t] = _mm256_add_epi32(_mm256_madd_epi16(low[t], _mm256_set1_epi16(1)),
                              _mm256_madd_epi16(high[t], _mm256_set1_epi16(16)));
  });
}

INFERD_INLINE inline __m256 Step(__m256i dot, __m256 dw, float da, __m256 f) {
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(dw, _mm256_set1_ps(da)), f);
}

template <ScaleMode kMode, Nibbles kNibbles, int kTokens>
void Tile(const TileInput& in) {
  constexpr bool kTwo = kMode == ScaleMode::kTwo || kMode == ScaleMode::kTwoMin;
  constexpr bool kMin = kMode == ScaleMode::kOneMin || kMode == ScaleMode::kTwoMin;
  const std::uint8_t* q = in.q + in.octet * 32;
  const float* scales = in.scales + in.octet * 8;
  float* c = in.c + in.octet * 8;
  const ActBlock* a = in.a;
  __m256 f[kTokens];
  Unroll<kTokens>([&](auto t) INFERD_INLINE { f[t] = _mm256_loadu_ps(c + t * kPanelRows); });
  for (std::int64_t j = 0; j < in.blocks; ++j, q += in.q_step, scales += kScaleFloats, ++a) {
    Unroll<kTwo ? 2 : 1>([&](auto half) INFERD_INLINE {
      __m256i dot[kTokens];
      Dot<kNibbles, kTokens, half * 4, kTwo ? 4 : 8>(q, a, in.lda, dot);
      const __m256 d = _mm256_loadu_ps(scales + half * kPanelRows);
      Unroll<kTokens>([&](auto t) INFERD_INLINE {
        const ActBlock& x = a[t * in.lda];
        const std::int32_t n = kTwo ? (half == 0 ? x.n_lo : x.n - x.n_lo) : x.n;
        if constexpr (kMin) {
          f[t] = Step(dot[t], d, x.d, f[t]);
          const float s = kTwo ? x.d * (static_cast<float>(n) * 0x1p-7f) : x.s;
          const __m256 min = _mm256_loadu_ps(scales + (2 + half) * kPanelRows);
          f[t] = _mm256_fmadd_ps(min, _mm256_set1_ps(s), f[t]);
        } else {
          f[t] = Step(_mm256_add_epi32(dot[t], _mm256_set1_epi32(n)), d, x.d, f[t]);
        }
      });
    });
  }
  Unroll<kTokens>([&](auto t) INFERD_INLINE { _mm256_storeu_ps(c + t * kPanelRows, f[t]); });
}

template <ScaleMode kMode, Nibbles kNibbles>
INFERD_INLINE inline void TileRows(std::int64_t tokens, const TileInput& in) {
  switch (tokens) {
    case 1:
      return Tile<kMode, kNibbles, 1>(in);
    case 2:
      return Tile<kMode, kNibbles, 2>(in);
    case 3:
      return Tile<kMode, kNibbles, 3>(in);
    default:
      return Tile<kMode, kNibbles, 4>(in);
  }
}

template <PackForm kForm>
void Form(const MatMulArgs& args) {
  constexpr int kPer = LayoutOf(kForm).super_k / 32;
  constexpr int kSuperHeader = LayoutOf(kForm).super_header;
  constexpr int kBlock = LayoutOf(kForm).block;
  constexpr int kQuants = LayoutOf(kForm).block_header;
  const std::int64_t blocks = args.k / 32;
  const std::int64_t chunk = args.m <= 16 ? 4 : kMatMulChunk;
  const std::int64_t tiles = (args.m + 3) / 4;
  float* c = reinterpret_cast<float*>(args.scratch);
  float* scales = c + args.m * kPanelRows;
  std::uint8_t* bytes = reinterpret_cast<std::uint8_t*>(scales + chunk * kScaleFloats);
  for (std::int64_t p = args.first; p < args.last; ++p) {
    const std::uint8_t* panel = args.panels + static_cast<std::size_t>(p) * args.panel_bytes;
    __builtin_memset(c, 0, static_cast<std::size_t>(args.m) * kPanelRows * 4);
    for (std::int64_t j = 0; j < blocks; j += chunk) {
      const std::int64_t count = blocks - j < chunk ? blocks - j : chunk;
      TileInput in = {bytes, 1024, scales, count, nullptr, args.ld_int8, nullptr, 0};
      if constexpr (HasBytes(kForm)) {
        in.q = panel + j * kBlock + kQuants;
        in.q_step = kBlock;
      }
      for (std::int64_t i = 0; i < count; ++i) {
        const std::uint8_t* head = panel + (j + i) / kPer * (kSuperHeader + kPer * kBlock);
        const std::uint8_t* block = head + kSuperHeader + (j + i) % kPer * kBlock;
        DecodeScales<kForm>(head, block, scales + i * kScaleFloats);
        if constexpr (!HasBytes(kForm)) {
          DecodeQuants<kForm>(block + kQuants, bytes + i * 1024);
        }
      }
      for (std::int64_t i = 0; i < tiles; ++i) {
        const std::int64_t t0 = args.m * i / tiles;
        in.a = args.a_int8 + t0 * args.ld_int8 + j;
        in.c = c + t0 * kPanelRows;
        for (in.octet = 0; in.octet < 4; ++in.octet) {
          TileRows<LayoutOf(kForm).mode, NibblesOf(kForm)>(args.m * (i + 1) / tiles - t0, in);
        }
      }
    }
    StorePanel(args, p, c, 1.0f / static_cast<float>(1 << LayoutOf(kForm).shift));
  }
}

}  // namespace

void Int8MatMulAvx2(const MatMulArgs& args) {
  static_assert(kMatMulScratch >=
                kMatMulRows * kPanelRows * 4 + kMatMulChunk * (kScaleBytes + 1024));
  switch (args.form) {
    case PackForm::kQ8:
      return Form<PackForm::kQ8>(args);
    case PackForm::kQ5:
      return Form<PackForm::kQ5>(args);
    case PackForm::kQ4:
      return Form<PackForm::kQ4>(args);
    case PackForm::kQ4K:
      return Form<PackForm::kQ4K>(args);
    case PackForm::kQ5K:
      return Form<PackForm::kQ5K>(args);
    case PackForm::kQ6K:
      return Form<PackForm::kQ6K>(args);
    case PackForm::kByteScale:
      return Form<PackForm::kByteScale>(args);
    case PackForm::kByteScaleMin:
      return Form<PackForm::kByteScaleMin>(args);
    case PackForm::kByteTwo:
      return Form<PackForm::kByteTwo>(args);
    default:
      return Form<PackForm::kByteTwoMin>(args);
  }
}

}  // namespace inferd::kernels
