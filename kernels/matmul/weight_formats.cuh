// SPDX-License-Identifier: Apache-2.0
// How the product kernels read stored weights. A warp takes 16 rows and chunks of 32 k; lane t of a
// quad has 8 of a row's 32 values, KOf(t, i) says which. A format is a struct with
//
//   kTerms      bfloat16 terms whose sum is the stored value (or its integer), exactly
//   kActTerms   terms of an activation
//   kScaling    whether the sums of 32 or 16 products are multiplied by a scale of the row
//   kHasMin     whether the row's min times the sum of the activations is taken off
//   Fetch       loads what one lane needs of one row and chunk
//   Unpack      turns it into pairs of bfloat16, pair p being values 2p and 2p + 1
//
// Fetch is called one chunk ahead, so that loads are in flight during the arithmetic.
#pragma once

#include "kernels/cuda/shim.cuh"
#include "kernels/matmul/matmul_cuda.h"

#include <cstddef>
#include <cstdint>

namespace inferd::kernels::cuda {

enum class Scaling { kNone, kPer32, kPer16 };

/// One row of a matrix, as Fetch sees it.
struct WeightRow {
  const std::byte* bytes;
  const float* scales;  // of the row, by j / scale_k; may be null
  const std::uint8_t* zeros;
  int scale_k;
  int k;
  bool aligned;  // the row begins at a multiple of 16 bytes
};

/// Index within the chunk of value i of lane t: runs of 8, or of 4 in each half where scales are
/// per 16.
template <Scaling kScaling>
DEVICE int KOf(int t, int i) {
  return kScaling == Scaling::kPer16 ? i / 4 * 16 + t * 4 + i % 4 : t * 8 + i;
}

// ------------------------------------------------------------------ plain numbers

struct alignas(16) Bits16x8 {
  std::uint16_t value[8];
};

// Eight 16-bit values from k0 on, zeros past the row's end.
DEVICE Bits16x8 FetchBits16(const WeightRow& row, int k0) {
  const auto* values = reinterpret_cast<const std::uint16_t*>(row.bytes);
  if (row.aligned && k0 + 8 <= row.k) {
    return *reinterpret_cast<const Bits16x8*>(values + k0);
  }
  Bits16x8 raw;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    raw.value[i] = k0 + i < row.k ? values[k0 + i] : std::uint16_t{0};
  }
  return raw;
}

struct WeightBf16 {
  static constexpr int kTerms = 1;
  static constexpr int kActTerms = 2;
  static constexpr Scaling kScaling = Scaling::kNone;
  static constexpr bool kHasMin = false;
  using Raw = Bits16x8;
  static DEVICE Raw Fetch(const WeightRow& row, int chunk, int t) {
    return FetchBits16(row, chunk * 32 + t * 8);
  }
  static DEVICE void Unpack(const Raw& raw,
                            std::uint32_t (&pairs)[kTerms][4],
                            float (&)[2],
                            float (&)[2]) {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      pairs[0][p] = raw.value[2 * p] | static_cast<std::uint32_t>(raw.value[2 * p + 1]) << 16;
    }
  }
};

/// terms[i][p]: the pair as a sum of bfloat16 pairs.
template <int kTerms>
DEVICE void SplitPair(float low, float high, int p, std::uint32_t (&terms)[kTerms][4]) {
#pragma unroll
  for (int term = 0; term < kTerms; ++term) {
    const std::uint32_t pair = PackBf16(low, high);
    terms[term][p] = pair;
    low -= __uint_as_float(pair << 16);
    high -= __uint_as_float(pair & 0xffff0000U);
  }
}

struct WeightF16 {
  static constexpr int kTerms = 2;
  static constexpr int kActTerms = 2;
  static constexpr Scaling kScaling = Scaling::kNone;
  static constexpr bool kHasMin = false;
  using Raw = Bits16x8;
  static DEVICE Raw Fetch(const WeightRow& row, int chunk, int t) {
    return FetchBits16(row, chunk * 32 + t * 8);
  }
  static DEVICE void Unpack(const Raw& raw,
                            std::uint32_t (&pairs)[kTerms][4],
                            float (&)[2],
                            float (&)[2]) {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      SplitPair<kTerms>(
          HalfBitsToFloat(raw.value[2 * p]), HalfBitsToFloat(raw.value[2 * p + 1]), p, pairs);
    }
  }
};

struct WeightF32 {
  static constexpr int kTerms = 3;
  static constexpr int kActTerms = 3;
  static constexpr Scaling kScaling = Scaling::kNone;
  static constexpr bool kHasMin = false;
  struct alignas(16) Raw {
    float value[8];
  };
  static DEVICE Raw Fetch(const WeightRow& row, int chunk, int t) {
    const int k0 = chunk * 32 + t * 8;
    const auto* values = reinterpret_cast<const float*>(row.bytes);
    if (row.aligned && k0 + 8 <= row.k) {
      return *reinterpret_cast<const Raw*>(values + k0);
    }
    Raw raw;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      raw.value[i] = k0 + i < row.k ? values[k0 + i] : 0.0F;
    }
    return raw;
  }
  static DEVICE void Unpack(const Raw& raw,
                            std::uint32_t (&pairs)[kTerms][4],
                            float (&)[2],
                            float (&)[2]) {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      SplitPair<kTerms>(raw.value[2 * p], raw.value[2 * p + 1], p, pairs);
    }
  }
};

// ------------------------------------------------------------------ bytes and nibbles with scales

DEVICE float ScaleAt(const WeightRow& row, int k) {
  return row.scales != nullptr ? row.scales[k / row.scale_k] : 1.0F;
}

// Eight bytes from k0 on, zeros past the row's end.
DEVICE uint2 FetchBytes8(const WeightRow& row, int k0) {
  if (row.aligned && k0 + 8 <= row.k) {
    return *reinterpret_cast<const uint2*>(row.bytes + k0);
  }
  unsigned words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (k0 + i < row.k) {
      words[i / 4] |= static_cast<unsigned>(row.bytes[k0 + i]) << (i % 4 * 8);
    }
  }
  return {words[0], words[1]};
}

struct RawBytes {
  uint2 bytes;
  float scale;
  DEVICE std::uint8_t Byte(int i) const {
    return static_cast<std::uint8_t>((i < 4 ? bytes.x : bytes.y) >> (i % 4 * 8));
  }
};

struct WeightF8 {
  static constexpr int kTerms = 1;
  static constexpr int kActTerms = 2;
  static constexpr Scaling kScaling = Scaling::kPer32;
  static constexpr bool kHasMin = false;
  using Raw = RawBytes;
  static DEVICE Raw Fetch(const WeightRow& row, int chunk, int t) {
    return {FetchBytes8(row, chunk * 32 + t * 8), ScaleAt(row, chunk * 32)};
  }
  static DEVICE void Unpack(const Raw& raw,
                            std::uint32_t (&pairs)[kTerms][4],
                            float (&scale)[2],
                            float (&)[2]) {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      pairs[0][p] = PackBf16(Fp8BitsToFloat(raw.Byte(2 * p)), Fp8BitsToFloat(raw.Byte(2 * p + 1)));
    }
    scale[0] = scale[1] = raw.scale;
  }
};

struct WeightI8 {
  static constexpr int kTerms = 1;
  static constexpr int kActTerms = 2;
  static constexpr Scaling kScaling = Scaling::kPer32;
  static constexpr bool kHasMin = false;
  using Raw = RawBytes;
  static DEVICE Raw Fetch(const WeightRow& row, int chunk, int t) {
    return {FetchBytes8(row, chunk * 32 + t * 8), ScaleAt(row, chunk * 32)};
  }
  static DEVICE void Unpack(const Raw& raw,
                            std::uint32_t (&pairs)[kTerms][4],
                            float (&scale)[2],
                            float (&)[2]) {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      pairs[0][p] = PackBf16(static_cast<float>(static_cast<std::int8_t>(raw.Byte(2 * p))),
                             static_cast<float>(static_cast<std::int8_t>(raw.Byte(2 * p + 1))));
    }
    scale[0] = scale[1] = raw.scale;
  }
};

struct WeightInt4 {
  static constexpr int kTerms = 1;
  static constexpr int kActTerms = 2;
  static constexpr Scaling kScaling = Scaling::kPer32;
  static constexpr bool kHasMin = false;
  struct Raw {
    unsigned nibbles;
    int zero;
    float scale;
  };
  static DEVICE Raw Fetch(const WeightRow& row, int chunk, int t) {
    const int k0 = chunk * 32 + t * 8;
    const int zero = row.zeros != nullptr ? row.zeros[chunk * 32 / row.scale_k] : 8;
    unsigned nibbles = 0;
    if (row.aligned && k0 + 8 <= row.k) {
      nibbles = *reinterpret_cast<const unsigned*>(row.bytes + k0 / 2);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (k0 + 2 * i < row.k) {
          nibbles |= static_cast<unsigned>(row.bytes[k0 / 2 + i]) << (8 * i);
        }
      }
    }
    return {nibbles, zero, ScaleAt(row, chunk * 32)};
  }
  static DEVICE void Unpack(const Raw& raw,
                            std::uint32_t (&pairs)[kTerms][4],
                            float (&scale)[2],
                            float (&)[2]) {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      // Past the end the activations are zero, so these weights may be anything finite.
      const int low = static_cast<int>(raw.nibbles >> (8 * p) & 15) - raw.zero;
      const int high = static_cast<int>(raw.nibbles >> (8 * p + 4) & 15) - raw.zero;
      pairs[0][p] = PackBf16(static_cast<float>(low), static_cast<float>(high));
    }
    scale[0] = scale[1] = raw.scale;
  }
};

}  // namespace inferd::kernels::cuda
