// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/kv_page.h"

#include <cstring>

namespace inferd::kernels {

void StoreKvBf16(const float* k, const float* v, std::int64_t head_dim, int slot, std::byte* head) {
  std::byte* kb = head + slot * 4;
  for (std::int64_t i = 0; i < head_dim; i += 2, kb += 4 * kPageTokens) {
    const std::uint32_t pair = FloatToBf16(k[i]) | std::uint32_t{FloatToBf16(k[i + 1])} << 16;
    std::memcpy(kb, &pair, 4);
  }
  std::byte* vb = head + 2 * kPageTokens * head_dim + (slot / 2) * head_dim * 4 + (slot & 1) * 2;
  for (std::int64_t i = 0; i < head_dim; ++i) {
    const std::uint16_t value = FloatToBf16(v[i]);
    std::memcpy(vb + 4 * i, &value, 2);
  }
}

void StoreKvHalf(const float* k, const float* v, std::int64_t head_dim, int slot, std::byte* head) {
  const auto store = [](std::byte* to, float value) {
    const std::uint16_t half = FloatToHalf(value);
    std::memcpy(to, &half, 2);
  };
  std::byte* values = head + (kPageTokens + slot) * head_dim * 2;
  for (std::int64_t i = 0; i < head_dim; ++i) {
    store(head + (i * kPageTokens + slot) * 2, k[i]);
    store(values + i * 2, v[i]);
  }
}

void StoreKvFloat(
    const float* k, const float* v, std::int64_t head_dim, int slot, std::byte* head) {
  for (std::int64_t i = 0; i < head_dim; ++i) {
    std::memcpy(head + (i * kPageTokens + slot) * 4, k + i, 4);
  }
  std::memcpy(head + 4 * kPageTokens * head_dim + slot * head_dim * 4,
              v,
              static_cast<std::size_t>(head_dim) * 4);
}

}  // namespace inferd::kernels
