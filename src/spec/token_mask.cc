// SPDX-License-Identifier: Apache-2.0
#include "spec/token_mask.h"

#include <algorithm>
#include <bit>

namespace inferd::spec {
namespace {

std::uint32_t WordMask(std::size_t word, std::int64_t vocab_size) {
  const std::int64_t left = vocab_size - static_cast<std::int64_t>(word) * 32;
  return left >= 32 ? ~0U : (1U << left) - 1;
}

/// Ids whose bit, inverted if `flip` says so, is set.
std::vector<std::int32_t> Ids(std::span<const std::uint32_t> bits,
                              std::int64_t vocab_size,
                              std::uint32_t flip) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    for (std::uint32_t word = (bits[i] ^ flip) & WordMask(i, vocab_size); word != 0;
         word &= word - 1) {
      ids.push_back(static_cast<std::int32_t>(i * 32) + std::countr_zero(word));
    }
  }
  return ids;
}

}  // namespace

void SetBits(std::span<const std::uint32_t> bits, std::int64_t vocab_size, TokenMask* mask) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    count += std::popcount(bits[i] & WordMask(i, vocab_size));
  }
  mask->tokens.clear();
  mask->bits.clear();
  // A listed id takes up to three bytes on the wire, a bit an eighth.
  const std::int64_t short_list = vocab_size / 24;
  if (count == vocab_size) {
    mask->kind = TokenMask::Kind::kAll;
  } else if (count <= short_list) {
    mask->kind = TokenMask::Kind::kOnly;
    mask->tokens = Ids(bits, vocab_size, 0);
  } else if (vocab_size - count <= short_list) {
    mask->kind = TokenMask::Kind::kAllBut;
    mask->tokens = Ids(bits, vocab_size, ~0U);
  } else {
    mask->kind = TokenMask::Kind::kBits;
    mask->bits.assign(bits.begin(), bits.end());
  }
}

bool Allows(const TokenMask& mask, std::int32_t token) {
  const auto listed = [&] {
    return std::binary_search(mask.tokens.begin(), mask.tokens.end(), token);
  };
  switch (mask.kind) {
    case TokenMask::Kind::kAll:
      return true;
    case TokenMask::Kind::kOnly:
      return listed();
    case TokenMask::Kind::kAllBut:
      return !listed();
    case TokenMask::Kind::kBits:
      break;
  }
  const auto word = static_cast<std::size_t>(token) / 32;
  return token >= 0 && word < mask.bits.size() && (mask.bits[word] >> (token % 32) & 1) != 0;
}

}  // namespace inferd::spec
