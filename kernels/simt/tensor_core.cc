// SPDX-License-Identifier: Apache-2.0
#include "kernels/simt/tensor_core.h"

#include "kernels/simt/tensor_core_bytes.h"
#include "kernels/types.h"

#include <cstring>

namespace inferd::simt {
namespace {

struct RowOperand {
  alignas(16) std::uint16_t row[8];
  std::uint32_t fragment[4];
};

// Each lane reads its own row, so that the sanitizers see who reads what.
__attribute__((noinline)) void ReadRow(std::uint16_t* to, const void* row) {
  for (int i = 0; i < 8; ++i) {
    to[i] = static_cast<const std::uint16_t*>(row)[i];
  }
}

SIMT_UNTRACED std::uint32_t At(void** operands, int matrix, int row, int column) {
  return static_cast<RowOperand*>(operands[matrix * 8 + row])->row[column];
}

// Lane l of matrix m receives row l / 4, columns 2 (l % 4) and the next; transposed: column l / 4,
// rows 2 (l % 4) and the next.
template <bool kTransposed>
SIMT_UNTRACED void LoadMatrixAll(void** operands, std::uint32_t) {
  for (int lane = 0; lane < 32; ++lane) {
    auto* mine = static_cast<RowOperand*>(operands[lane]);
    const int group = lane / 4;
    const int pair = lane % 4 * 2;
    for (int m = 0; m < 4; ++m) {
      mine->fragment[m] =
          kTransposed ? At(operands, m, pair, group) | At(operands, m, pair + 1, group) << 16
                      : At(operands, m, group, pair) | At(operands, m, group, pair + 1) << 16;
    }
  }
}

struct MmaOperand {
  float* d;
  const std::uint32_t* a;
  std::uint32_t b[2];
};

template <HalfKind kKind>
SIMT_UNTRACED float Low(std::uint32_t pair) {
  return kKind == HalfKind::kBf16 ? kernels::BitsToFloat(pair << 16)
                                  : kernels::HalfToFloat(static_cast<std::uint16_t>(pair));
}

template <HalfKind kKind>
SIMT_UNTRACED float High(std::uint32_t pair) {
  return kKind == HalfKind::kBf16 ? kernels::BitsToFloat(pair & 0xffff0000U)
                                  : kernels::HalfToFloat(static_cast<std::uint16_t>(pair >> 16));
}

template <HalfKind kKind>
SIMT_UNTRACED void MmaAll(void** operands, std::uint32_t) {
  float a[16][16];
  float b[16][8];
  float d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto* mine = static_cast<MmaOperand*>(operands[lane]);
    const int group = lane / 4;
    const int pair = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      const int row = group + i % 2 * 8;
      const int k = pair + i / 2 * 8;
      a[row][k] = Low<kKind>(mine->a[i]);
      a[row][k + 1] = High<kKind>(mine->a[i]);
      d[group + i / 2 * 8][pair + i % 2] = mine->d[i];
    }
    for (int i = 0; i < 2; ++i) {
      b[pair + i * 8][group] = Low<kKind>(mine->b[i]);
      b[pair + i * 8 + 1][group] = High<kKind>(mine->b[i]);
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) {
        d[row][column] += a[row][k] * b[k][column];
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    auto* mine = static_cast<MmaOperand*>(operands[lane]);
    for (int i = 0; i < 4; ++i) {
      mine->d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
  }
}

template <class Sum>
struct ByteOperand {
  Sum* d;
  const std::uint32_t* a;
  std::uint32_t b[2];
};

SIMT_UNTRACED int ByteValue(std::uint8_t bits, int /*kind*/) {
  return static_cast<std::int8_t>(bits);
}
SIMT_UNTRACED float ByteValue(std::uint8_t bits, float /*kind*/) {
  return kernels::Fp8ToFloat(bits);
}

template <class Sum>
SIMT_UNTRACED void ByteMmaAll(void** operands, std::uint32_t) {
  Sum a[16][32];
  Sum b[32][8];
  Sum d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto* mine = static_cast<ByteOperand<Sum>*>(operands[lane]);
    const int group = lane / 4;
    const int four = lane % 4 * 4;
    for (int byte = 0; byte < 4; ++byte) {
      for (int i = 0; i < 4; ++i) {
        const auto bits = static_cast<std::uint8_t>(mine->a[i] >> (8 * byte));
        a[group + i % 2 * 8][four + i / 2 * 16 + byte] = ByteValue(bits, Sum{});
      }
      for (int i = 0; i < 2; ++i) {
        const auto bits = static_cast<std::uint8_t>(mine->b[i] >> (8 * byte));
        b[four + i * 16 + byte][group] = ByteValue(bits, Sum{});
      }
    }
    for (int i = 0; i < 4; ++i) {
      d[group + i / 2 * 8][lane % 4 * 2 + i % 2] = mine->d[i];
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 32; ++k) {
      for (int column = 0; column < 8; ++column) {
        d[row][column] += a[row][k] * b[k][column];
      }
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    auto* mine = static_cast<ByteOperand<Sum>*>(operands[lane]);
    for (int i = 0; i < 4; ++i) {
      mine->d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
  }
}

}  // namespace

SIMT_UNTRACED void LoadMatrix(std::uint32_t (&fragment)[4],
                              const void* row,
                              bool transposed,
                              const Location& where) {
  if ((reinterpret_cast<std::uintptr_t>(row) & 15) != 0) {
    Fail("ldmatrix: a row's address is not aligned to 16 bytes", where);
  }
  RowOperand operand;
  ReadRow(operand.row, row);
  Meet(Meeting::kLoadMatrix,
       ~0U,
       &operand,
       transposed ? &LoadMatrixAll<true> : &LoadMatrixAll<false>,
       where,
       false);
  std::memcpy(fragment, operand.fragment, sizeof(fragment));
}

SIMT_UNTRACED void MultiplyAdd(HalfKind kind,
                               float (&d)[4],
                               const std::uint32_t (&a)[4],
                               std::uint32_t b0,
                               std::uint32_t b1,
                               const Location& where) {
  MmaOperand operand{d, a, {b0, b1}};
  Meet(Meeting::kMma,
       ~0U,
       &operand,
       kind == HalfKind::kBf16 ? &MmaAll<HalfKind::kBf16> : &MmaAll<HalfKind::kF16>,
       where,
       false);
}

SIMT_UNTRACED void MultiplyAddInt8(int (&d)[4],
                                   const std::uint32_t (&a)[4],
                                   std::uint32_t b0,
                                   std::uint32_t b1,
                                   const Location& where) {
  ByteOperand<int> operand{d, a, {b0, b1}};
  Meet(Meeting::kMma, ~0U, &operand, &ByteMmaAll<int>, where, false);
}

SIMT_UNTRACED void MultiplyAddFp8(float (&d)[4],
                                  const std::uint32_t (&a)[4],
                                  std::uint32_t b0,
                                  std::uint32_t b1,
                                  const Location& where) {
  ByteOperand<float> operand{d, a, {b0, b1}};
  Meet(Meeting::kMma, ~0U, &operand, &ByteMmaAll<float>, where, false);
}

}  // namespace inferd::simt
