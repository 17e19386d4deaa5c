// SPDX-License-Identifier: Apache-2.0
// Random bits that are finite numbers however they are read: what kernels are timed with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace inferd {

/// Every 16 bits are a BF16 or the upper half of a float of 0.008 to 0.03 in size, or an F16 of
/// about 1; every 8 bits are a finite E4M3 value.
class Noise {
 public:
  explicit Noise(std::size_t bytes) : bits_(bytes / sizeof(std::uint16_t)) {
    std::uint32_t state = 1;
    for (std::uint16_t& bits : bits_) {
      state = state * 1664525 + 1013904223;
      const std::uint32_t random = state >> 16;
      bits = static_cast<std::uint16_t>((random & 0x80f7U) | 0x3c00U);
    }
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bits_)); }

 private:
  std::vector<std::uint16_t> bits_;
};

}  // namespace inferd
