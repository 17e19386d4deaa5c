// SPDX-License-Identifier: Apache-2.0
// 64-bit unsigned arithmetic that answers nullopt instead of wrapping; for every size that comes
// out of a file or a peer.
#pragma once

#include <cstdint>
#include <optional>

namespace inferd::base {

inline std::optional<std::uint64_t> CheckedAdd(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) {
    return std::nullopt;
  }
  return result;
}

inline std::optional<std::uint64_t> CheckedMul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) {
    return std::nullopt;
  }
  return result;
}

/// value rounded up to a multiple of alignment (alignment > 0).
inline std::optional<std::uint64_t> CheckedAlignUp(std::uint64_t value, std::uint64_t alignment) {
  const auto sum = CheckedAdd(value, alignment - 1);
  if (!sum) {
    return std::nullopt;
  }
  return *sum / alignment * alignment;
}

}  // namespace inferd::base
