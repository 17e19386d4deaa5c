// SPDX-License-Identifier: Apache-2.0
// Where one head's K and V of a token lie in its page (AttentionArgs in kernels.h describes the two
// layouts).
#pragma once

#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>

namespace inferd::kernels {

/// Bytes of one head in a page: K then V of kPageTokens tokens.
static constexpr inline std::size_t HeadPageBytes(std::size_t value_bytes, std::int64_t head_dim) {
  return 2 * kPageTokens * static_cast<std::size_t>(head_dim) * value_bytes;
}

/// Stores K and V of one token at `slot` of the head's share of a page, rounding to the page's
/// type.
void StoreKvBf16(const float* k, const float* v, std::int64_t head_dim, int slot, std::byte* head);
void StoreKvHalf(const float* k, const float* v, std::int64_t head_dim, int slot, std::byte* head);
void StoreKvFloat(const float* k, const float* v, std::int64_t head_dim, int slot, std::byte* head);

}  // namespace inferd::kernels
