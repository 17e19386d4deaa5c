// SPDX-License-Identifier: Apache-2.0
// The numbers kernels exchange: int8 activation blocks, and half, bf16 and fp8 conversions. Every
// function here is `static inline`, so that a copy compiled for one instruction set never stands in
// for another's.
#pragma once

#include <cstdint>
#include <cstring>

namespace inferd::kernels {

/// Output rows per panel of a packed matrix.
inline constexpr int kPanelRows = 32;

/// 32 activations as int8 with everything a weight block needs to know about them: value = d * q.
struct ActBlock {
  std::int8_t q[32];
  float d;  // scale
  float s;  // -d * sum(q): multiplies the mins of asymmetric weights
  std::int32_t
      n;  // -128 * sum(q): start value of the integer accumulator, weights have zero point 128
  std::int32_t n_lo;  // the same over the first 16 values, for weights with a scale per 16
};
static_assert(sizeof(ActBlock) == 48);

static inline float BitsToFloat(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static inline std::uint32_t FloatToBits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

static inline float Bf16ToFloat(std::uint16_t value) {
  return BitsToFloat(std::uint32_t{value} << 16);
}

/// Round to nearest even; NaN stays NaN.
static inline std::uint16_t FloatToBf16(float value) {
  const std::uint32_t bits = FloatToBits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) {
    return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  }
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/// Exact, denormals included.
static inline float HalfToFloat(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000u} << 16;
  const std::uint32_t exponent = (half >> 10) & 31;
  const std::uint32_t mantissa = half & 0x3ff;
  if (exponent == 31) {
    return BitsToFloat(sign | 0x7f800000 | (mantissa << 13));
  }
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return BitsToFloat(sign | FloatToBits(magnitude));
  }
  return BitsToFloat(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

/// Round to nearest even; what is finite stays finite (at most 65504 in size), NaN stays NaN.
static inline std::uint16_t FloatToHalf(float value) {
  const std::uint32_t bits = FloatToBits(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const std::uint32_t size = bits & 0x7fffffff;
  if (size >= 0x477ff000) {  // 65520 and more
    const std::uint16_t top = size > 0x7f800000 ? 0x7e00 : size == 0x7f800000 ? 0x7c00 : 0x7bff;
    return sign | top;
  }
  if (size < 0x38800000) {  // denormal: the sum's last bit is the half's
    const std::uint32_t sum = FloatToBits(BitsToFloat(size) + 0.5f);
    return sign | static_cast<std::uint16_t>(sum - 0x3f000000);
  }
  const std::uint32_t rounded = size + 0xfff + ((size >> 13) & 1);
  return sign | static_cast<std::uint16_t>((rounded - 0x38000000) >> 13);
}

/// OCP E4M3: no infinity, NaN is all ones, smallest denormal 2^-9. Exact.
static inline float Fp8ToFloat(std::uint8_t value) {
  const std::uint32_t sign = std::uint32_t{value & 0x80u} << 24;
  const std::uint32_t exponent = (value >> 3) & 15;
  const std::uint32_t mantissa = value & 7;
  if (exponent == 15 && mantissa == 7) {
    return BitsToFloat(sign | 0x7fc00000);
  }
  if (exponent == 0) {
    return BitsToFloat(sign | FloatToBits(static_cast<float>(mantissa) * 0x1p-9f));
  }
  return BitsToFloat(sign | ((exponent + 120) << 23) | (mantissa << 20));
}

}  // namespace inferd::kernels
