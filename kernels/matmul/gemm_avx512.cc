// SPDX-License-Identifier: Apache-2.0
// Products of prefills with int8 forms, and of any batch with byte forms: a chunk of a panel is
// decoded to bytes in the first-level cache and used by tiles of up to 6 tokens x 32 rows. Byte
// forms are their own decoded blocks. Bytes moved: the panel once per 512 rows, the activations
// once per panel.
#include "kernels/matmul/int8_avx512.h"
#include "kernels/matmul/matmul_avx512.h"

namespace inferd::kernels {
namespace {

/// How a decoded block carries its scales, ahead of 1024 bytes in group order.
enum class TileMode { kHalf, kFloat, kMin, kTwo, kTwoMin };

constexpr TileMode ModeOf(PackForm form) {
  switch (form) {
    case PackForm::kQ8:
    case PackForm::kQ5:
    case PackForm::kQ4:
      return TileMode::kHalf;
    case PackForm::kByteScale:
      return TileMode::kFloat;
    case PackForm::kQ6K:
    case PackForm::kByteTwo:
      return TileMode::kTwo;
    case PackForm::kByteTwoMin:
      return TileMode::kTwoMin;
    default:
      return TileMode::kMin;
  }
}

constexpr int HeaderOf(TileMode mode) {
  switch (mode) {
    case TileMode::kHalf:
      return 64;
    case TileMode::kFloat:
      return 128;
    case TileMode::kTwoMin:
      return 512;
    default:
      return 256;
  }
}

constexpr bool IsDecoded(PackForm form) {
  return LayoutOf(form).super_k == 32 && LayoutOf(form).block == HeaderOf(ModeOf(form)) + 1024;
}

// Decodes blocks [j0, j0 + blocks) of a panel.
template <PackForm kForm>
void DecodeBlocks(const std::uint8_t* panel,
                  std::int64_t j0,
                  std::int64_t blocks,
                  std::uint8_t* out) {
  // Plain integers: gcc 12 does not carry a constexpr struct into a lambda.
  constexpr int kPer = LayoutOf(kForm).super_k / 32;
  constexpr int kSuperHeader = LayoutOf(kForm).super_header;
  constexpr int kBlock = LayoutOf(kForm).block;
  constexpr int kQuants = LayoutOf(kForm).block_header;
  constexpr TileMode kMode = ModeOf(kForm);
  constexpr int kHeader = HeaderOf(kMode);
  for (std::int64_t j = j0; j < j0 + blocks; ++j, out += kHeader + 1024) {
    const std::uint8_t* head = panel + j / kPer * (kSuperHeader + kPer * kBlock);
    const std::uint8_t* block = head + kSuperHeader + j % kPer * kBlock;
    if constexpr (kMode == TileMode::kHalf) {
      _mm512_store_si512(out, Load(block));
    } else {
      Unroll<2>([&](auto b) INFERD_INLINE {
        __m512 second;
        if constexpr (kMode == TileMode::kMin) {
          second = BrickMin(head, block, b);
        } else {
          second = BrickScale<kForm>(head, block, b, 1);
        }
        _mm512_store_ps(out + b * 64, BrickScale<kForm>(head, block, b, 0));
        _mm512_store_ps(out + 128 + b * 64, second);
      });
    }
    Unroll<8>([&](auto g) INFERD_INLINE {
      _mm512_store_si512(out + kHeader + g * 128, Group<kForm>(block + kQuants, 0, g));
      _mm512_store_si512(out + kHeader + g * 128 + 64, Group<kForm>(block + kQuants, 1, g));
    });
  }
}

// The multiply part of a tile: T tokens x 32 rows added to c[brick][token]. In assembly, because it
// is the one place where a spilled accumulator halves the speed; scales and everything else stay in
// intrinsics around it. Registers: 2T + 3.
#define INFERD_GROUP_LOAD(g) \
  "vmovdqa64 128*" #g "(%[w]), %%zmm29\n\tvmovdqa64 128*" #g "+64(%[w]), %%zmm30\n\t"
#define INFERD_MAC(g, addr, c0, c1)                                         \
  "vpbroadcastd 4*" #g addr ", %%zmm31\n\tvpdpbusd %%zmm31, %%zmm29, %[" c0 \
  "]\n\tvpdpbusd %%zmm31, %%zmm30, %[" c1 "]\n\t"
#define INFERD_T1(g) INFERD_MAC(g, "(%[a])", "p0", "q0")
#define INFERD_T2(g) INFERD_T1(g) INFERD_MAC(g, "(%[a],%[s])", "p1", "q1")
#define INFERD_T3(g) INFERD_T2(g) INFERD_MAC(g, "(%[a],%[s],2)", "p2", "q2")
#define INFERD_T4(g) INFERD_T3(g) INFERD_MAC(g, "(%[a3])", "p3", "q3")
#define INFERD_T5(g) INFERD_T4(g) INFERD_MAC(g, "(%[a],%[s],4)", "p4", "q4")
#define INFERD_T6(g) INFERD_T5(g) INFERD_MAC(g, "(%[a3],%[s],2)", "p5", "q5")
#define INFERD_O1 [p0] "+v"(c[0][0]), [q0] "+v"(c[1][0])
#define INFERD_O2 INFERD_O1, [p1] "+v"(c[0][1]), [q1] "+v"(c[1][1])
#define INFERD_O3 INFERD_O2, [p2] "+v"(c[0][2]), [q2] "+v"(c[1][2])
#define INFERD_O4 INFERD_O3, [p3] "+v"(c[0][3]), [q3] "+v"(c[1][3])
#define INFERD_O5 INFERD_O4, [p4] "+v"(c[0][4]), [q4] "+v"(c[1][4])
#define INFERD_O6 INFERD_O5, [p5] "+v"(c[0][5]), [q5] "+v"(c[1][5])
#define INFERD_LO(row) \
  INFERD_GROUP_LOAD(0) \
  row(0) INFERD_GROUP_LOAD(1) row(1) INFERD_GROUP_LOAD(2) row(2) INFERD_GROUP_LOAD(3) row(3)
#define INFERD_HI(row) \
  INFERD_GROUP_LOAD(4) \
  row(4) INFERD_GROUP_LOAD(5) row(5) INFERD_GROUP_LOAD(6) row(6) INFERD_GROUP_LOAD(7) row(7)
#define INFERD_ALL(row) INFERD_LO(row) INFERD_HI(row)
// The "m" operands say what is read; a "memory" clobber would flush the caller's registers. 30
// operands is gcc's limit
// ("+v" counts twice), hence the three fixed registers.
#define INFERD_ASM(code, ...)                                    \
  asm(code:__VA_ARGS__                                           \
      : [w] "r"(w),                                              \
        [a] "r"(a),                                              \
        [a3] "r"(a3),                                            \
        [s] "r"(stride),                                         \
        "m"(*reinterpret_cast<const std::uint8_t(*)[1024]>(w)),  \
        "m"(*reinterpret_cast<const std::int8_t(*)[1 << 20]>(a)) \
      : "xmm29", "xmm30", "xmm31")

/// kPart: 0 = all 8 groups, 1 = groups 0-3, 2 = groups 4-7.
template <int kTokens, int kPart>
INFERD_INLINE inline void Dot(const std::uint8_t* w,
                              const std::int8_t* a,
                              std::ptrdiff_t stride,
                              __m512i (&c)[2][kTokens]) {
  const std::int8_t* a3 = a + 3 * stride;
#define INFERD_CASE(tokens, row, ...)           \
  if constexpr (kTokens == tokens) {            \
    if constexpr (kPart == 0) {                 \
      INFERD_ASM(INFERD_ALL(row), __VA_ARGS__); \
    } else if constexpr (kPart == 1) {          \
      INFERD_ASM(INFERD_LO(row), __VA_ARGS__);  \
    } else {                                    \
      INFERD_ASM(INFERD_HI(row), __VA_ARGS__);  \
    }                                           \
  }
  INFERD_CASE(1, INFERD_T1, INFERD_O1)
  INFERD_CASE(2, INFERD_T2, INFERD_O2)
  INFERD_CASE(3, INFERD_T3, INFERD_O3)
  INFERD_CASE(4, INFERD_T4, INFERD_O4)
  INFERD_CASE(5, INFERD_T5, INFERD_O5)
  INFERD_CASE(6, INFERD_T6, INFERD_O6)
#undef INFERD_CASE
}

template <TileMode kMode>
INFERD_INLINE inline __m512 TileScale(const std::uint8_t* w, int brick, int half) {
  if constexpr (kMode == TileMode::kHalf) {
    return HalfRow(w + brick * 32);
  }
  return _mm512_load_ps(w + half * 128 + brick * 64);
}

struct TileInput {
  const std::uint8_t* w;  // decoded blocks
  std::int64_t blocks;
  const ActBlock* a;
  std::ptrdiff_t lda;
  float* c;                   // [tokens, 32], loaded, continued and stored
  const std::uint8_t* ahead;  // lines to ask ahead of, `ahead_lines` before each block
  int ahead_lines;
};

template <int kTokens, TileMode kMode>
void Tile(const TileInput& in) {
  constexpr int kHeader = HeaderOf(kMode);
  constexpr bool kTwo = kMode == TileMode::kTwo || kMode == TileMode::kTwoMin;
  constexpr bool kMins = kMode == TileMode::kMin || kMode == TileMode::kTwoMin;
  const std::uint8_t* w = in.w;
  const std::uint8_t* ahead = in.ahead;
  const ActBlock* a = in.a;
  const std::ptrdiff_t lda = in.lda;
  const std::ptrdiff_t stride = lda * static_cast<std::ptrdiff_t>(sizeof(ActBlock));
  __m512 f[2][kTokens];
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    f[0][t] = _mm512_load_ps(in.c + t * 32);
    f[1][t] = _mm512_load_ps(in.c + t * 32 + 16);
  });
  for (std::int64_t j = 0; j < in.blocks; ++j, w += kHeader + 1024, ++a) {
    for (int i = 0; i < in.ahead_lines; ++i, ahead += 64) {
      AskAhead(ahead);
    }
    Unroll<kTwo ? 2 : 1>([&](auto half) INFERD_INLINE {
      __m512i acc[2][kTokens];
      Unroll<kTokens>([&](auto t) INFERD_INLINE {
        acc[0][t] = acc[1][t] = Start<kTwo, kMins>(a[t * lda], half);
      });
      Dot<kTokens, kTwo ? 1 + half : 0>(w + kHeader, a->q, stride, acc);
      const __m512 d0 = TileScale<kMode>(w, 0, half);
      const __m512 d1 = TileScale<kMode>(w, 1, half);
      Unroll<kTokens>([&](auto t) INFERD_INLINE {
        const ActBlock& x = a[t * lda];
        f[0][t] = Step(acc[0][t], d0, x.d, f[0][t]);
        f[1][t] = Step(acc[1][t], d1, x.d, f[1][t]);
        if constexpr (kMins) {
          float s = x.s;
          if constexpr (kTwo) {
            s = x.d * (static_cast<float>(half == 0 ? x.n_lo : x.n - x.n_lo) * 0x1p-7f);
          }
          const std::uint8_t* min = w + (kTwo ? 256 + half * 128 : 128);
          f[0][t] = _mm512_fmadd_ps(_mm512_load_ps(min), _mm512_set1_ps(s), f[0][t]);
          f[1][t] = _mm512_fmadd_ps(_mm512_load_ps(min + 64), _mm512_set1_ps(s), f[1][t]);
        }
      });
    });
  }
  Unroll<kTokens>([&](auto t) INFERD_INLINE {
    _mm512_store_ps(in.c + t * 32, f[0][t]);
    _mm512_store_ps(in.c + t * 32 + 16, f[1][t]);
  });
}

template <TileMode kMode>
INFERD_INLINE inline void TileRows(std::int64_t tokens, const TileInput& in) {
  switch (tokens) {
    case 1:
      return Tile<1, kMode>(in);
    case 2:
      return Tile<2, kMode>(in);
    case 3:
      return Tile<3, kMode>(in);
    case 4:
      return Tile<4, kMode>(in);
    case 5:
      return Tile<5, kMode>(in);
    default:
      return Tile<6, kMode>(in);
  }
}

template <PackForm kForm>
void GemmForm(const MatMulArgs& args) {
  constexpr TileMode kMode = ModeOf(kForm);
  constexpr int kBlock = LayoutOf(kForm).block;
  constexpr std::int64_t kLines = (kBlock + 63) / 64;
  const std::int64_t m = args.m;
  const std::int64_t blocks = args.k / 32;
  // Few rows per panel: weights must stream. Packed forms come here with more (matmul.cc).
  constexpr std::int64_t kStreamRows = 32;
  const bool from_memory = IsDecoded(kForm) && m <= kStreamRows;
  const std::int64_t chunk = from_memory ? 4 : kMatMulChunk;
  const std::int64_t tiles = (m + 5) / 6;  // evenly: 16 = 5 + 5 + 6, not 6 + 6 + 4
  float* c = reinterpret_cast<float*>(args.scratch);
  std::uint8_t* decoded = args.scratch + static_cast<std::size_t>(m) * kPanelRows * 4;
  const __m512 scale = _mm512_set1_ps(OutScale(kForm));
  for (std::int64_t p = args.first; p < args.last; ++p) {
    const std::uint8_t* panel = args.panels + static_cast<std::size_t>(p) * args.panel_bytes;
    __builtin_memset(c, 0, static_cast<std::size_t>(m) * kPanelRows * 4);
    for (std::int64_t j = 0; j < blocks; j += chunk) {
      const std::int64_t count = blocks - j < chunk ? blocks - j : chunk;
      TileInput in = {decoded, count, nullptr, args.ld_int8, nullptr, nullptr, 0};
      if constexpr (IsDecoded(kForm)) {
        in.w = panel + j * kBlock;
      } else {
        DecodeBlocks<kForm>(panel, j, count, decoded);
      }
      // Asks for what comes further on, a part of a block's lines before each tile of each block.
      in.ahead = panel + j * static_cast<std::int64_t>(args.panel_bytes) / blocks;
      for (std::int64_t i = 0; i < tiles; ++i, in.ahead += in.ahead_lines * 64 * count) {
        in.ahead_lines = static_cast<int>(kLines * (i + 1) / tiles - kLines * i / tiles);
        const std::int64_t t0 = m * i / tiles;
        in.a = args.a_int8 + t0 * args.ld_int8 + j;
        in.c = c + t0 * kPanelRows;
        TileRows<kMode>(m * (i + 1) / tiles - t0, in);
      }
    }
    for (std::int64_t t = 0; t < m; ++t) {
      const float* row = c + t * kPanelRows;
      StoreRow(args,
               t,
               p * kPanelRows,
               _mm512_mul_ps(_mm512_load_ps(row), scale),
               _mm512_mul_ps(_mm512_load_ps(row + 16), scale));
    }
  }
}

}  // namespace

void GemmAvx512(const MatMulArgs& args) {
  switch (args.form) {
    case PackForm::kQ8:
      return GemmForm<PackForm::kQ8>(args);
    case PackForm::kQ5:
      return GemmForm<PackForm::kQ5>(args);
    case PackForm::kQ4:
      return GemmForm<PackForm::kQ4>(args);
    case PackForm::kQ4K:
      return GemmForm<PackForm::kQ4K>(args);
    case PackForm::kQ5K:
      return GemmForm<PackForm::kQ5K>(args);
    case PackForm::kQ6K:
      return GemmForm<PackForm::kQ6K>(args);
    case PackForm::kByteScale:
      return GemmForm<PackForm::kByteScale>(args);
    case PackForm::kByteScaleMin:
      return GemmForm<PackForm::kByteScaleMin>(args);
    case PackForm::kByteTwo:
      return GemmForm<PackForm::kByteTwo>(args);
    default:
      return GemmForm<PackForm::kByteTwoMin>(args);
  }
}

}  // namespace inferd::kernels
