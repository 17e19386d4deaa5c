// SPDX-License-Identifier: Apache-2.0
// GGUF's block-quantised weights as the product kernels read them; dequant.cc has the same in plain
// C++. Every value is a small integer times the block's scale (less a min): the integers are exact
// in bfloat16, scales and mins are applied to the sums.
#pragma once

#include "kernels/matmul/weight_formats.cuh"

namespace inferd::kernels::cuda {

/// What a lane has of a block: eight integers as bytes, scales and mins of the two halves.
struct RawBlock {
  std::uint8_t value[8];
  float scale[2];
  float min[2];
};

DEVICE std::uint16_t Load16(const std::byte* at) {
  return *reinterpret_cast<const std::uint16_t*>(at);  // block sizes are even
}
DEVICE float LoadHalf(const std::byte* at) { return HalfBitsToFloat(Load16(at)); }
DEVICE int LoadByte(const std::byte* at) { return static_cast<int>(*at); }

// Eight bytes from an even address.
DEVICE void LoadBytes8(const std::byte* at, std::uint8_t (&out)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint16_t pair = Load16(at + 2 * i);
    out[2 * i] = static_cast<std::uint8_t>(pair);
    out[2 * i + 1] = static_cast<std::uint8_t>(pair >> 8);
  }
}

DEVICE void SetScale(float scale, float min, RawBlock* raw) {
  raw->scale[0] = raw->scale[1] = scale;
  raw->min[0] = raw->min[1] = min;
}

// 16 bytes at `at`: value i < 16 in the low nibble of byte i, value i + 16 in its high nibble.
DEVICE void LoadNibbles(const std::byte* at, int t, RawBlock* raw) {
  LoadBytes8(at + t % 2 * 8, raw->value);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    raw->value[i] = t < 2 ? raw->value[i] & 15 : raw->value[i] >> 4;
  }
}

DEVICE void AddFifthBits(const std::byte* at, int t, RawBlock* raw) {
  const unsigned bits = static_cast<unsigned>(LoadByte(at + t));
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    raw->value[i] = static_cast<std::uint8_t>(raw->value[i] | (bits >> i & 1) << 4);
  }
}

/// The common half: integers less kZero become pairs.
template <int kZero, Scaling kScalingValue, bool kMin>
struct BlockFormat {
  static constexpr int kTerms = 1;
  static constexpr int kActTerms = 2;
  static constexpr Scaling kScaling = kScalingValue;
  static constexpr bool kHasMin = kMin;
  using Raw = RawBlock;
  static DEVICE void Unpack(const Raw& raw,
                            std::uint32_t (&pairs)[kTerms][4],
                            float (&scale)[2],
                            float (&min)[2]) {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      pairs[0][p] = PackBf16(static_cast<float>(static_cast<int>(raw.value[2 * p]) - kZero),
                             static_cast<float>(static_cast<int>(raw.value[2 * p + 1]) - kZero));
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale[h] = raw.scale[h];
      min[h] = raw.min[h];
    }
  }
};

struct WeightQ4_0 : BlockFormat<8, Scaling::kPer32, false> {
  static DEVICE Raw Fetch(const WeightRow& row, int chunk, int t) {
    const std::byte* block = row.bytes + static_cast<std::int64_t>(chunk) * 18;
    Raw raw;
    SetScale(LoadHalf(block), 0, &raw);
    LoadNibbles(block + 2, t, &raw);
    return raw;
  }
};

struct WeightQ4_1 : BlockFormat<0, Scaling::kPer32, true> {
  static DEVICE Raw Fetch(const WeightRow& row, int chunk, int t) {
    const std::byte* block = row.bytes + static_cast<std::int64_t>(chunk) * 20;
    Raw raw;
    SetScale(LoadHalf(block), -LoadHalf(block + 2), &raw);
    LoadNibbles(block + 4, t, &raw);
    return raw;
  }
};

struct WeightQ5_0 : BlockFormat<16, Scaling::kPer32, false> {
  static DEVICE Raw Fetch(const WeightRow& row, int chunk, int t) {
    const std::byte* block = row.bytes + static_cast<std::int64_t>(chunk) * 22;
    Raw raw;
    SetScale(LoadHalf(block), 0, &raw);
    LoadNibbles(block + 6, t, &raw);
    AddFifthBits(block + 2, t, &raw);
    return raw;
  }
};

struct WeightQ5_1 : BlockFormat<0, Scaling::kPer32, true> {
  static DEVICE Raw Fetch(const WeightRow& row, int chunk, int t) {
    const std::byte* block = row.bytes + static_cast<std::int64_t>(chunk) * 24;
    Raw raw;
    SetScale(LoadHalf(block), -LoadHalf(block + 2), &raw);
    LoadNibbles(block + 8, t, &raw);
    AddFifthBits(block + 4, t, &raw);
    return raw;
  }
};

struct WeightQ8_0 : BlockFormat<128, Scaling::kPer32, false> {
  static DEVICE Raw Fetch(const WeightRow& row, int chunk, int t) {
    const std::byte* block = row.bytes + static_cast<std::int64_t>(chunk) * 34;
    Raw raw;
    SetScale(LoadHalf(block), 0, &raw);
    LoadBytes8(block + 2 + t * 8, raw.value);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      raw.value[i] = static_cast<std::uint8_t>(raw.value[i] ^ 0x80);
    }
    return raw;
  }
};

/// FP4 E2M1 doubled, scale 2^(e - 128); blocks are 17 bytes, so bytes are loaded one by one.
struct WeightMxfp4 : BlockFormat<12, Scaling::kPer32, false> {
  static DEVICE Raw Fetch(const WeightRow& row, int chunk, int t) {
    const std::byte* block = row.bytes + static_cast<std::int64_t>(chunk) * 17;
    const unsigned e = static_cast<unsigned>(LoadByte(block));
    Raw raw;
    SetScale(__uint_as_float(e < 2 ? 0x00200000U << e : (e - 1) << 23), 0, &raw);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int byte = LoadByte(block + 1 + t % 2 * 8 + i);
      const int code = t < 2 ? byte & 15 : byte >> 4;
      // 0 1 2 3 4 6 8 12, a nibble each.
      const int size = static_cast<int>(0xc8643210U >> (code % 8 * 4) & 15);
      raw.value[i] = static_cast<std::uint8_t>(12 + (code < 8 ? size : -size));
    }
    return raw;
  }
};

// Q4_K and Q5_K: 12 bytes hold 8 scales and 8 mins of 6 bits.
DEVICE void SixBitScaleMin(const std::byte* s, int j, int* scale, int* min) {
  if (j < 4) {
    *scale = LoadByte(s + j) & 63;
    *min = LoadByte(s + j + 4) & 63;
  } else {
    *scale = (LoadByte(s + j + 4) & 15) | LoadByte(s + j - 4) >> 6 << 4;
    *min = LoadByte(s + j + 4) >> 4 | LoadByte(s + j) >> 6 << 4;
  }
}

template <bool kFifth>
struct WeightQ45K : BlockFormat<0, Scaling::kPer32, true> {
  static DEVICE RawBlock Fetch(const WeightRow& row, int chunk, int t) {
    const std::byte* block =
        row.bytes + static_cast<std::int64_t>(chunk / 8) * (kFifth ? 176 : 144);
    const int j = chunk % 8;
    int scale = 0;
    int min = 0;
    SixBitScaleMin(block + 4, j, &scale, &min);
    RawBlock raw;
    SetScale(LoadHalf(block) * static_cast<float>(scale),
             LoadHalf(block + 2) * static_cast<float>(min),
             &raw);
    LoadBytes8(block + (kFifth ? 48 : 16) + j / 2 * 32 + t * 8, raw.value);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      raw.value[i] = j % 2 == 0 ? raw.value[i] & 15 : raw.value[i] >> 4;
    }
    if (kFifth) {
      std::uint8_t high[8];
      LoadBytes8(block + 16 + t * 8, high);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        raw.value[i] = static_cast<std::uint8_t>(raw.value[i] | (high[i] >> j & 1) << 4);
      }
    }
    return raw;
  }
};
using WeightQ4_K = WeightQ45K<false>;
using WeightQ5_K = WeightQ45K<true>;

struct WeightQ6_K : BlockFormat<32, Scaling::kPer16, false> {
  static DEVICE Raw Fetch(const WeightRow& row, int chunk, int t) {
    const std::byte* block = row.bytes + static_cast<std::int64_t>(chunk / 8) * 210;
    const int half = chunk % 8 / 4;
    const int quarter = chunk % 4;
    const std::byte* low = block + half * 64 + quarter % 2 * 32 + t * 4;
    const std::byte* high = block + 128 + half * 32 + t * 4;
    const float d = LoadHalf(block + 208);
    Raw raw;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const unsigned l = Load16(low + h * 16 + i);
        const unsigned u = Load16(high + h * 16 + i);
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          const unsigned nibble = l >> (8 * b + quarter / 2 * 4) & 15;
          const unsigned top = u >> (8 * b + quarter * 2) & 3;
          raw.value[h * 4 + i + b] = static_cast<std::uint8_t>(nibble | top << 4);
        }
      }
      const int scale = LoadByte(block + 192 + chunk % 8 * 2 + h);
      raw.scale[h] = d * static_cast<float>(static_cast<std::int8_t>(scale));
      raw.min[h] = 0;
    }
    return raw;
  }
};

}  // namespace inferd::kernels::cuda
