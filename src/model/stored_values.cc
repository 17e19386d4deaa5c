// SPDX-License-Identifier: Apache-2.0
#include "model/stored_values.h"

#include "base/check.h"
#include "base/float_bits.h"

#include <algorithm>
#include <cstring>

namespace inferd::model {
namespace {

// Index of the first value whose exponent bits are all ones.
template <class Bits>
std::optional<std::int64_t> FirstWithExponent(std::span<const std::byte> values, Bits mask) {
  constexpr std::size_t kBatch = 256;
  const std::size_t count = values.size() / sizeof(Bits);
  for (std::size_t begin = 0; begin < count; begin += kBatch) {
    const std::size_t end = std::min(count, begin + kBatch);
    unsigned found = 0;
    for (std::size_t i = begin; i < end; ++i) {
      Bits bits = 0;
      std::memcpy(&bits, values.data() + i * sizeof(Bits), sizeof(Bits));
      found |= static_cast<unsigned>((bits & mask) == mask);
    }
    if (found == 0) {
      continue;
    }
    for (std::size_t i = begin; i < end; ++i) {
      Bits bits = 0;
      std::memcpy(&bits, values.data() + i * sizeof(Bits), sizeof(Bits));
      if ((bits & mask) == mask) {
        return static_cast<std::int64_t>(i);
      }
    }
  }
  return std::nullopt;
}

}  // namespace

bool IsPlain(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16 ||
         type == DType::kF8E4M3;
}

std::optional<std::int64_t> FirstNonFinite(DType type, std::span<const std::byte> values) {
  switch (type) {
    case DType::kF32:
      return FirstWithExponent<std::uint32_t>(values, 0x7F800000U);
    case DType::kF16:
      return FirstWithExponent<std::uint16_t>(values, 0x7C00U);
    case DType::kBF16:
      return FirstWithExponent<std::uint16_t>(values, 0x7F80U);
    case DType::kF8E4M3:  // no infinities; 0x7F and 0xFF are NaN
      return FirstWithExponent<std::uint8_t>(values, 0x7FU);
    default:
      base::CheckFailed("plain type", DTypeName(type));
  }
}

std::vector<float> ToFloats(DType type, std::span<const std::byte> values) {
  const std::size_t size = static_cast<std::size_t>(BlockBytes(type));
  std::vector<float> floats(values.size() / size);
  if (type == DType::kF32) {
    std::memcpy(floats.data(), values.data(), floats.size() * sizeof(float));
    return floats;
  }
  INFERD_CHECK(type == DType::kF16 || type == DType::kBF16);
  for (std::size_t i = 0; i < floats.size(); ++i) {
    floats[i] = PlainToFloat(type, values.data() + i * size);
  }
  return floats;
}

}  // namespace inferd::model
