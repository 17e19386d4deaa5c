// SPDX-License-Identifier: Apache-2.0
// What a page of the device's KV cache holds, read as kv_cuda.h documents it, by the host's
// conversions.
#pragma once

#include "kernels/attention/kv_cuda.h"
#include "kernels/types.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace inferd::kernels::cuda {

/// Value i of K (0) or V (1) of a head at `slot` of a page; without k_scale and v_scale, which are
/// of FP8 caches as a whole.
inline double StoredKv(const std::byte* page,
                       KvFormat format,
                       int kv_heads,
                       int head_dim,
                       int head,
                       int which,
                       int slot,
                       int i) {
  const auto dim = static_cast<std::size_t>(head_dim);
  const auto token = static_cast<std::size_t>((head * 2 + which) * kCudaPageTokens + slot);
  const std::byte* const at =
      page + (token * dim + static_cast<std::size_t>(i)) * KvValueBytes(format);
  std::uint16_t half = 0;
  float value = 0;
  switch (format) {
    case KvFormat::kF32:
      std::memcpy(&value, at, 4);
      return value;
    case KvFormat::kF16:
      std::memcpy(&half, at, 2);
      return HalfToFloat(half);
    case KvFormat::kBf16:
      std::memcpy(&half, at, 2);
      return Bf16ToFloat(half);
    case KvFormat::kF8E4M3:
      return Fp8ToFloat(static_cast<std::uint8_t>(*at));
    case KvFormat::kInt8:
      std::memcpy(&value,
                  page + static_cast<std::size_t>(kv_heads * 2 * kCudaPageTokens) * dim + token * 4,
                  4);
      return static_cast<double>(value) * static_cast<std::int8_t>(*at);
  }
  return NAN;
}

}  // namespace inferd::kernels::cuda
