// SPDX-License-Identifier: Apache-2.0
// Floats rounded to GGUF's blocks of 32 and to E4M3: what `--quantization int8 | int4 | fp8` does
// while loading.
#pragma once

#include "base/dtype.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace inferd::store {

inline constexpr std::int64_t kRoundBlock = 32;
using RoundedValues = std::array<float, kRoundBlock>;

/// Values [at, at + 32) of an array of F32, F16 or BF16.
RoundedValues PlainBlock(DType type, const std::byte* values, std::int64_t at);

/// The nearest Q8_0 (scale: largest value / 127) or Q4_0 block (the scale of a few that leaves the
/// smallest squared error) of `values`; returns the end of what it wrote. NaN and infinity give an
/// infinite scale, which packing refuses.
std::byte* RoundBlock(const RoundedValues& values, DType type, std::byte* out);

inline constexpr float kF8Largest = 448;
/// The nearest E4M3 value, at most 448 in size; ties go to the even code. NaN gives NaN.
std::uint8_t RoundToF8(float value);

}  // namespace inferd::store
