// SPDX-License-Identifier: Apache-2.0
// Floats as files store them.
#pragma once

#include "base/dtype.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace inferd {

inline float HalfToFloat(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16U;
  const std::uint32_t exponent = (bits >> 10U) & 0x1FU;
  const std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0) {
    return std::bit_cast<float>(
        std::bit_cast<std::uint32_t>(static_cast<float>(mantissa) * 0x1p-24F) | sign);
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23U) | (mantissa << 13U));
}

/// To nearest, ties to even; what is too large becomes infinite and is refused later.
inline std::uint16_t FloatToHalf(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const float size = std::abs(value);
  if (!(size < 65520.0F)) {
    return static_cast<std::uint16_t>(sign | 0x7C00U);
  }
  const int exponent = size < 0x1p-14F ? -14 : std::ilogb(size);
  const double steps = std::nearbyint(std::ldexp(static_cast<double>(size), 10 - exponent));
  // 1024 steps and more carry into the exponent by themselves.
  return static_cast<std::uint16_t>(sign | (static_cast<std::uint32_t>(exponent + 14) * 1024U +
                                            static_cast<std::uint32_t>(steps)));
}

inline float Bf16ToFloat(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

inline std::uint16_t FloatToBf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

inline float F8ToFloat(std::uint8_t bits) {
  const int exponent = (bits >> 3U) & 15;
  const int mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) {
    return NAN;
  }
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(mantissa + 8), exponent - 10);
  return (bits & 0x80U) != 0 ? -size : size;
}

/// The value at `at`, which need not be aligned. Precondition: type is F32, F16 or BF16.
inline float PlainToFloat(DType type, const std::byte* at) {
  if (type == DType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return type == DType::kF16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
}

}  // namespace inferd
