// SPDX-License-Identifier: Apache-2.0
// Scalar unpacking by the layout tables of the GGUF specification. Runs at load and for embedding
// rows only.
#include "kernels/dequant/dequant.h"

#include "base/check.h"
#include "kernels/types.h"

namespace inferd::kernels {
namespace {

using Bytes = const std::uint8_t*;

// The 16 values of the IQ4 code book and of FP4 E2M1 (doubled, its scale is halved instead).
constexpr std::int8_t kIq4Values[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr std::int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

std::uint16_t Load16(Bytes p) { return static_cast<std::uint16_t>(p[0] | (p[1] << 8)); }
std::uint32_t Load32(Bytes p) {
  return std::uint32_t{Load16(p)} | (std::uint32_t{Load16(p + 2)} << 16);
}
float Half(Bytes p) { return HalfToFloat(Load16(p)); }

void SetScale(float scale, float min, int zero, Block32* out) {
  out->scale[0] = out->scale[1] = scale;
  out->min[0] = out->min[1] = min;
  out->zero = zero;
}

// 16 bytes: value i < 16 in the low nibble of byte i, value i + 16 in its high nibble.
void SplitNibbles(Bytes q, Block32* out) {
  for (int i = 0; i < 16; ++i) {
    out->u[i] = q[i] & 15;
    out->u[i + 16] = q[i] >> 4;
  }
}

// The same through a table of signed values, stored with zero point 128.
void SplitCodes(Bytes q, const std::int8_t* values, Block32* out) {
  SplitNibbles(q, out);
  for (std::uint8_t& u : out->u) {
    u = static_cast<std::uint8_t>(values[u] + 128);
  }
}

void AddFifthBit(std::uint32_t bits, Block32* out) {
  for (int i = 0; i < 32; ++i) {
    out->u[i] = static_cast<std::uint8_t>(out->u[i] | (((bits >> i) & 1) << 4));
  }
}

// Q4_K and Q5_K: 12 bytes hold 8 scales and 8 mins of 6 bits.
void SixBitScaleMin(Bytes s, int j, int* scale, int* min) {
  if (j < 4) {
    *scale = s[j] & 63;
    *min = s[j + 4] & 63;
  } else {
    *scale = (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4);
    *min = (s[j + 4] >> 4) | ((s[j] >> 6) << 4);
  }
}

// scales[16] (scale low, min high nibble) | q[64] two bits | d | dmin
void UnpackQ2K(Bytes b, int j, Block32* out) {
  const float d = Half(b + 80);
  const float dmin = Half(b + 82);
  const Bytes q = b + 16 + (j / 4) * 32;
  for (int i = 0; i < 32; ++i) {
    out->u[i] = (q[i] >> (2 * (j % 4))) & 3;
  }
  for (int h = 0; h < 2; ++h) {
    out->scale[h] = d * static_cast<float>(b[2 * j + h] & 15);
    out->min[h] = dmin * static_cast<float>(b[2 * j + h] >> 4);
  }
  out->zero = 0;
}

// hmask[32] | q[64] two bits | scales[12], 16 of 6 bits | d
void UnpackQ3K(Bytes b, int j, Block32* out) {
  const Bytes q = b + 32 + (j / 4) * 32;
  const Bytes scales = b + 96;
  const float d = Half(b + 108);
  for (int i = 0; i < 32; ++i) {
    out->u[i] = static_cast<std::uint8_t>(((q[i] >> (2 * (j % 4))) & 3) | (((b[i] >> j) & 1) << 2));
  }
  for (int h = 0; h < 2; ++h) {
    const int index = 2 * j + h;
    const int low = index < 8 ? scales[index] & 15 : scales[index - 8] >> 4;
    const int high = (scales[8 + index % 4] >> (2 * (index / 4))) & 3;
    out->scale[h] = d * static_cast<float>((low | (high << 4)) - 32);
    out->min[h] = 0;
  }
  out->zero = 4;
}

// d | dmin | scales[12] | (Q5_K: qh[32]) | q[128]
void UnpackQ45K(Bytes b, int j, bool fifth, Block32* out) {
  int scale = 0;
  int min = 0;
  SixBitScaleMin(b + 4, j, &scale, &min);
  SetScale(Half(b) * static_cast<float>(scale), Half(b + 2) * static_cast<float>(min), 0, out);
  const Bytes q = b + (fifth ? 48 : 16) + (j / 2) * 32;
  for (int i = 0; i < 32; ++i) {
    out->u[i] = (j & 1) != 0 ? q[i] >> 4 : q[i] & 15;
    if (fifth) {
      out->u[i] = static_cast<std::uint8_t>(out->u[i] | (((b[16 + i] >> j) & 1) << 4));
    }
  }
}

// ql[128] | qh[64] | scales[16] int8 | d
void UnpackQ6K(Bytes b, int j, Block32* out) {
  const int half = j / 4;
  const int quarter = j % 4;
  const Bytes low = b + half * 64 + (quarter & 1) * 32;
  const Bytes high = b + 128 + half * 32;
  const float d = Half(b + 208);
  for (int i = 0; i < 32; ++i) {
    const int nibble = quarter < 2 ? low[i] & 15 : low[i] >> 4;
    out->u[i] = static_cast<std::uint8_t>(nibble | (((high[i] >> (2 * quarter)) & 3) << 4));
  }
  for (int h = 0; h < 2; ++h) {
    out->scale[h] = d * static_cast<float>(static_cast<std::int8_t>(b[192 + 2 * j + h]));
    out->min[h] = 0;
  }
  out->zero = 32;
}

// d | scales_h uint16 | scales_l[4] | q[128]
void UnpackIq4Xs(Bytes b, int j, Block32* out) {
  const int low = (b[4 + j / 2] >> (4 * (j % 2))) & 15;
  const int high = (Load16(b + 2) >> (2 * j)) & 3;
  SetScale(Half(b) * static_cast<float>((low | (high << 4)) - 32), 0, 128, out);
  SplitCodes(b + 8 + 16 * j, kIq4Values, out);
}

// E8M0 exponent, halved because the table is doubled: 2^(e - 128), denormal for e < 2.
float Mxfp4Scale(std::uint8_t e) {
  return e < 2 ? BitsToFloat(std::uint32_t{0x00200000} << e)
               : BitsToFloat((std::uint32_t{e} - 1) << 23);
}

}  // namespace

bool IsBlockQuantised(DType type) { return BlockElements(type) > 1; }

void UnpackBlock(DType type, const std::byte* block, int j, Block32* out) {
  const Bytes b = reinterpret_cast<Bytes>(block);
  switch (type) {
    case DType::kQ4_0:
      SetScale(Half(b), 0, 8, out);
      return SplitNibbles(b + 2, out);
    case DType::kQ4_1:
      SetScale(Half(b), -Half(b + 2), 0, out);
      return SplitNibbles(b + 4, out);
    case DType::kQ5_0:
      SetScale(Half(b), 0, 16, out);
      SplitNibbles(b + 6, out);
      return AddFifthBit(Load32(b + 2), out);
    case DType::kQ5_1:
      SetScale(Half(b), -Half(b + 2), 0, out);
      SplitNibbles(b + 8, out);
      return AddFifthBit(Load32(b + 4), out);
    case DType::kQ8_0:
      SetScale(Half(b), 0, 128, out);
      for (int i = 0; i < 32; ++i) {
        out->u[i] = b[2 + i] ^ 0x80;
      }
      return;
    case DType::kQ2_K:
      return UnpackQ2K(b, j, out);
    case DType::kQ3_K:
      return UnpackQ3K(b, j, out);
    case DType::kQ4_K:
      return UnpackQ45K(b, j, false, out);
    case DType::kQ5_K:
      return UnpackQ45K(b, j, true, out);
    case DType::kQ6_K:
      return UnpackQ6K(b, j, out);
    case DType::kIQ4_NL:
      SetScale(Half(b), 0, 128, out);
      return SplitCodes(b + 2, kIq4Values, out);
    case DType::kIQ4_XS:
      return UnpackIq4Xs(b, j, out);
    case DType::kMXFP4:
      SetScale(Mxfp4Scale(b[0]), 0, 128, out);
      return SplitCodes(b + 1, kFp4Values, out);
    default:
      base::CheckFailed("UnpackBlock of a quantised type", DTypeName(type));
  }
}

void DequantRow(DType type, const std::byte* row, std::int64_t k, float* out) {
  const Bytes b = reinterpret_cast<Bytes>(row);
  switch (type) {
    case DType::kF32:
      std::memcpy(out, b, static_cast<std::size_t>(k) * 4);
      return;
    case DType::kF16:
      for (std::int64_t i = 0; i < k; ++i) {
        out[i] = Half(b + 2 * i);
      }
      return;
    case DType::kBF16:
      for (std::int64_t i = 0; i < k; ++i) {
        out[i] = Bf16ToFloat(Load16(b + 2 * i));
      }
      return;
    case DType::kF8E4M3:
      for (std::int64_t i = 0; i < k; ++i) {
        out[i] = Fp8ToFloat(b[i]);
      }
      return;
    default:
      break;
  }
  const std::int64_t elements = BlockElements(type);
  const std::int64_t bytes = BlockBytes(type);
  for (std::int64_t i = 0; i < k; i += 32, out += 32) {
    Block32 block;
    UnpackBlock(type, row + i / elements * bytes, static_cast<int>(i % elements / 32), &block);
    for (int v = 0; v < 32; ++v) {
      out[v] =
          block.scale[v / 16] * static_cast<float>(block.u[v] - block.zero) - block.min[v / 16];
    }
  }
}

}  // namespace inferd::kernels
