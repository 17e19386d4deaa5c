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

/// Beside them in a page of int8: the scales of K, then of V, a float a token.
static constexpr std::size_t kHeadScaleBytes = 2 * kPageTokens * sizeof(float);

/// Runs of head_dim & -head_dim values (the largest power of two in it) times the orthonormal
/// Hadamard matrix, in place. Q and K of int8 pages go through it: no product of them changes, and
/// a value much larger than the others, which would leave these few of the 127 steps, is shared
/// out.
void SpreadHead(float* head, std::int64_t head_dim);

/// Stores K and V of one token at `slot` of the head's share of a page, rounding to the page's
/// type. The 8-bit types keep no NaN.
void StoreKvBf16(const float* k, const float* v, std::int64_t head_dim, int slot, std::byte* head);
void StoreKvHalf(const float* k, const float* v, std::int64_t head_dim, int slot, std::byte* head);
void StoreKvFloat(const float* k, const float* v, std::int64_t head_dim, int slot, std::byte* head);
void StoreKvFp8(const float* k, const float* v, std::int64_t head_dim, int slot, std::byte* head);
void StoreKvInt8(const float* k, const float* v, std::int64_t head_dim, int slot, std::byte* head);

/// Bytes of a page of latent tokens (LatentArgs), a multiple of 64.
static constexpr inline std::size_t LatentPageBytes(KvValue format, std::int64_t dim) {
  const std::size_t value = format == KvValue::kF32                               ? 4
                            : format == KvValue::kF16 || format == KvValue::kBf16 ? 2
                                                                                  : 1;
  return kPageTokens * static_cast<std::size_t>(dim) * value +
         (format == KvValue::kInt8 ? kPageTokens * sizeof(float) : 0);
}

/// Stores one token of `dim` values at `slot` of a page of latent tokens.
void StoreLatent(KvValue format, const float* x, std::int64_t dim, int slot, std::byte* page);

}  // namespace inferd::kernels
