// SPDX-License-Identifier: Apache-2.0
#include "store/block_rounding.h"

#include "base/check.h"
#include "base/float_bits.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace inferd::store {
namespace {

// Q4_0 holds -8 .. 7 steps. The largest value at -8 uses all of them; a little less or more costs
// that value some error and saves it on the other 31.
constexpr std::array<float, 5> kLargestAt = {-8.0F, -7.5F, -7.0F, -8.5F, -9.0F};

struct Nibbles {
  std::array<int, kRoundBlock> q = {};  // 0 .. 15, zero at 8
  float error = 0;
};

Nibbles RoundTo(const RoundedValues& values, float scale) {
  Nibbles rounded;
  const float inverse = scale == 0 ? 0.0F : 1.0F / scale;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float step = std::clamp(std::nearbyint(values[i] * inverse), -8.0F, 7.0F);
    const float miss = values[i] - step * scale;
    rounded.q[i] = static_cast<int>(step) + 8;
    rounded.error += miss * miss;
  }
  return rounded;
}

std::byte* PutHalf(std::uint16_t half, std::byte* out) {
  std::memcpy(out, &half, sizeof(half));
  return out + sizeof(half);
}

std::byte* RoundToInt8(const RoundedValues& values, float largest, std::byte* out) {
  const std::uint16_t half = FloatToHalf(std::abs(largest) / 127.0F);
  const float scale = HalfToFloat(half);
  out = PutHalf(half, out);
  for (const float value : values) {
    const float step =
        scale == 0 ? 0.0F : std::clamp(std::nearbyint(value / scale), -127.0F, 127.0F);
    *out++ = static_cast<std::byte>(static_cast<std::int8_t>(step));
  }
  return out;
}

std::byte* RoundToInt4(const RoundedValues& values, float largest, std::byte* out) {
  std::uint16_t best_half = 0;
  Nibbles best;
  for (const float place : kLargestAt) {
    const std::uint16_t half = FloatToHalf(largest / place);
    const Nibbles rounded = RoundTo(values, HalfToFloat(half));
    if (place == kLargestAt.front() || rounded.error < best.error) {
      best = rounded;
      best_half = half;
    }
  }
  out = PutHalf(best_half, out);
  for (std::size_t i = 0; i < kRoundBlock / 2; ++i) {
    *out++ = static_cast<std::byte>(best.q[i] | best.q[i + kRoundBlock / 2] << 4);
  }
  return out;
}

}  // namespace

std::uint8_t RoundToF8(float value) {
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float size = std::min(std::abs(value), kF8Largest);
  if (std::isnan(value)) {
    return sign | 0x7f;
  }
  const int exponent = size < 0x1p-6F ? -6 : std::ilogb(size);
  // 8 steps and more carry into the exponent by themselves; below 2^-6 there is no leading one.
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(size, 3 - exponent)));
  return static_cast<std::uint8_t>(sign | (8 * (exponent + 6) + steps));
}

RoundedValues PlainBlock(DType type, const std::byte* values, std::int64_t at) {
  RoundedValues block;
  const std::int64_t size = BlockBytes(type);
  for (std::int64_t i = 0; i < kRoundBlock; ++i) {
    block[static_cast<std::size_t>(i)] = PlainToFloat(type, values + (at + i) * size);
  }
  return block;
}

std::byte* RoundBlock(const RoundedValues& values, DType type, std::byte* out) {
  INFERD_CHECK(type == DType::kQ8_0 || type == DType::kQ4_0);
  float largest = 0;
  for (const float value : values) {
    if (!std::isfinite(value)) {
      largest = INFINITY;
      break;
    }
    largest = std::abs(value) > std::abs(largest) ? value : largest;
  }
  if (!std::isfinite(largest)) {
    out = std::fill_n(PutHalf(FloatToHalf(INFINITY), out),
                      BlockBytes(type) - static_cast<std::int64_t>(sizeof(std::uint16_t)),
                      std::byte{0});
    return out;
  }
  return type == DType::kQ8_0 ? RoundToInt8(values, largest, out)
                              : RoundToInt4(values, largest, out);
}

}  // namespace inferd::store
