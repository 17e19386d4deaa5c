// SPDX-License-Identifier: Apache-2.0
// Where the device keeps K and V, and which rows a step has. A page holds kCudaPageTokens tokens of
// one layer:
//
//   values  [kv head][K, then V][token][head_dim]
//   scales  [kv head][K, then V][token] floats, int8 only: value = scale * q
//
// FP8 values are E4M3 with one scale for all K and one for all V of the layer.
#pragma once

#include <cstddef>
#include <cstdint>

namespace inferd::kernels::cuda {

inline constexpr int kCudaPageTokens = 32;

enum class KvFormat : std::uint8_t { kF16, kBf16, kF32, kF8E4M3, kInt8 };

constexpr std::size_t KvValueBytes(KvFormat format) {
  return format == KvFormat::kF32                                ? 4
         : format == KvFormat::kF16 || format == KvFormat::kBf16 ? 2
                                                                 : 1;
}

/// Bytes of one layer's share of a page, a multiple of 16 for head_dim % 8 == 0.
constexpr std::size_t KvBytesPerPage(KvFormat format,
                                     std::int64_t kv_heads,
                                     std::int64_t head_dim) {
  const auto tokens = static_cast<std::size_t>(kv_heads) * 2 * kCudaPageTokens;
  return tokens * static_cast<std::size_t>(head_dim) * KvValueBytes(format) +
         (format == KvFormat::kInt8 ? tokens * sizeof(float) : 0);
}

/// One layer's pages: page p begins at base + p * page_bytes.
struct KvPages {
  std::byte* base = nullptr;
  std::int64_t page_bytes = 0;
  KvFormat format = KvFormat::kF16;
  int kv_heads = 0;
  int head_dim = 0;
  float k_scale = 1;  // of FP8 values
  float v_scale = 1;
};

/// The rows of a step. All pointers are device memory.
struct StepRows {
  std::int64_t rows = 0;
  const std::int32_t* position = nullptr;  // [rows]; negative: a padding row, gives zeros
  const std::int32_t* sequence = nullptr;  // [rows], row of `pages`
  const std::int32_t* pages = nullptr;     // [sequences, max_pages]
  int max_pages = 0;
};

}  // namespace inferd::kernels::cuda
