// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/kv_page.h"

#include <cmath>
#include <cstring>

namespace inferd::kernels {
namespace {

// E4M3, to nearest even, at most 448 in size.
std::byte FloatToFp8(float value) {
  const std::uint32_t bits = FloatToBits(value);
  const std::uint32_t sign = bits >> 24 & 0x80;
  const std::uint32_t size = bits & 0x7fffffff;
  std::uint32_t code = 0x7e;
  if (size < 0x3c800000) {  // below 2^-6, denormal: a sum whose last bits count 2^-9
    code = FloatToBits(BitsToFloat(size) + 16384.0F) - 0x46800000;
  } else if (size < 0x43e00000) {  // 448
    code = (size + 0x7ffff + (size >> 20 & 1) - 0x3c000000) >> 20;
  }
  return static_cast<std::byte>(sign | code);
}

// One token's values as q * scale, `step` bytes apart.
void StoreInt8(
    const float* x, std::int64_t head_dim, std::byte* to, std::int64_t step, std::byte* scale) {
  float top = 0;
  for (std::int64_t i = 0; i < head_dim; ++i) {
    const float size = std::fabs(x[i]);
    top = size > top ? size : top;
  }
  const float unit = top / 127;
  std::memcpy(scale, &unit, sizeof unit);
  const float inverse = top > 0 ? 127 / top : 0;
  for (std::int64_t i = 0; i < head_dim; ++i) {
    // 1.5 * 2^23: the sum is rounded to an integer, whose low byte is q.
    to[i * step] = static_cast<std::byte>(FloatToBits(x[i] * inverse + 12582912.0F));
  }
}

}  // namespace

void SpreadHead(float* head, std::int64_t head_dim) {
  const std::int64_t run = head_dim & -head_dim;
  for (std::int64_t half = 1; half < run; half *= 2) {
    for (std::int64_t begin = 0; begin < head_dim; begin += 2 * half) {
      for (std::int64_t i = begin; i < begin + half; ++i) {
        const float a = head[i];
        const float b = head[i + half];
        head[i] = a + b;
        head[i + half] = a - b;
      }
    }
  }
  const float unit = 1 / std::sqrt(static_cast<float>(run));
  for (std::int64_t i = 0; i < head_dim; ++i) {
    head[i] *= unit;
  }
}

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

void StoreKvFp8(const float* k, const float* v, std::int64_t head_dim, int slot, std::byte* head) {
  std::byte* values = head + (kPageTokens + slot) * head_dim;
  for (std::int64_t i = 0; i < head_dim; ++i) {
    head[i * kPageTokens + slot] = FloatToFp8(k[i]);
    values[i] = FloatToFp8(v[i]);
  }
}

void StoreKvInt8(const float* k, const float* v, std::int64_t head_dim, int slot, std::byte* head) {
  std::byte* values = head + kPageTokens * head_dim;
  std::byte* scales = values + kPageTokens * head_dim;
  StoreInt8(k, head_dim, head + slot, kPageTokens, scales + 4 * slot);
  StoreInt8(v, head_dim, values + slot * head_dim, 1, scales + 4 * (kPageTokens + slot));
}

void StoreLatent(KvValue format, const float* x, std::int64_t dim, int slot, std::byte* page) {
  switch (format) {
    case KvValue::kF32:
      std::memcpy(page + slot * dim * 4, x, static_cast<std::size_t>(dim) * 4);
      return;
    case KvValue::kF16:
    case KvValue::kBf16:
      for (std::int64_t i = 0; i < dim; ++i) {
        const std::uint16_t value = format == KvValue::kF16 ? FloatToHalf(x[i]) : FloatToBf16(x[i]);
        std::memcpy(page + (slot * dim + i) * 2, &value, 2);
      }
      return;
    case KvValue::kFp8:
      for (std::int64_t i = 0; i < dim; ++i) {
        page[slot * dim + i] = FloatToFp8(x[i]);
      }
      return;
    case KvValue::kInt8:
      StoreInt8(x, dim, page + slot * dim, 1, page + kPageTokens * dim + slot * 4);
      return;
  }
}

}  // namespace inferd::kernels
