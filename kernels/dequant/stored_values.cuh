// SPDX-License-Identifier: Apache-2.0
// Plain stored values on the device: one struct per type with Get(row, i), the value of element i.
#pragma once

#include "kernels/cuda/shim.cuh"

#include <cstddef>
#include <cstdint>

namespace inferd::kernels::cuda {

struct StoredF32 {
  static constexpr int kBytes = 4;
  static DEVICE float Get(const std::byte* row, std::int64_t i) {
    return reinterpret_cast<const float*>(row)[i];
  }
};

struct StoredF16 {
  static constexpr int kBytes = 2;
  static DEVICE float Get(const std::byte* row, std::int64_t i) {
    return HalfBitsToFloat(reinterpret_cast<const std::uint16_t*>(row)[i]);
  }
};

struct StoredBf16 {
  static constexpr int kBytes = 2;
  static DEVICE float Get(const std::byte* row, std::int64_t i) {
    return Bf16BitsToFloat(reinterpret_cast<const std::uint16_t*>(row)[i]);
  }
};

}  // namespace inferd::kernels::cuda
