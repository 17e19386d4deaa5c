// SPDX-License-Identifier: Apache-2.0
// Which tokens a constrained row may take in one step: made by the leader, waited for by the
// sampler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace inferd::spec {

/// Tokens beyond what `bits` covers are not allowed.
struct TokenMask {
  enum class Kind : std::uint8_t {
    kAll,     // every token; also what a row gets whose result nobody wants any more
    kOnly,    // `tokens`
    kAllBut,  // all but `tokens`
    kBits,    // bit i % 32 of `bits`[i / 32] for token i
  };

  std::uint64_t generation = 0;
  std::int64_t step = 0;  // with group and row: the sample this is for
  std::int32_t group = 0;
  std::int32_t row = 0;
  Kind kind = Kind::kAll;
  std::vector<std::int32_t> tokens;  // ascending
  std::vector<std::uint32_t> bits;
};

constexpr std::size_t MaskWords(std::int64_t vocab_size) {
  return static_cast<std::size_t>((vocab_size + 31) / 32);
}

/// Puts `bits` (MaskWords(vocab_size) words) into the shortest form. The names of `mask` stay.
void SetBits(std::span<const std::uint32_t> bits, std::int64_t vocab_size, TokenMask* mask);

bool Allows(const TokenMask& mask, std::int32_t token);

}  // namespace inferd::spec
