// SPDX-License-Identifier: Apache-2.0
#include "spec/token_mask.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace inferd::spec {
namespace {

std::vector<std::uint32_t> BitsOf(const std::set<std::int32_t>& ids, std::int64_t vocab_size) {
  std::vector<std::uint32_t> bits(MaskWords(vocab_size), 0);
  for (const std::int32_t id : ids) {
    bits[static_cast<std::size_t>(id) / 32] |= 1U << (id % 32);
  }
  return bits;
}

TEST(TokenMaskTest, EveryFormAllowsTheSameTokens) {
  std::mt19937 random(3);
  std::set<TokenMask::Kind> seen;
  for (const std::int64_t vocab_size : {1, 31, 32, 33, 256, 1000}) {
    for (const int percent : {0, 1, 50, 99, 100}) {
      std::set<std::int32_t> ids;
      for (std::int32_t id = 0; id < vocab_size; ++id) {
        if (static_cast<int>(random() % 100) < percent) {
          ids.insert(id);
        }
      }
      TokenMask mask;
      mask.step = 7;
      SetBits(BitsOf(ids, vocab_size), vocab_size, &mask);
      seen.insert(mask.kind);
      EXPECT_EQ(mask.step, 7);
      for (std::int32_t id = 0; id < vocab_size; ++id) {
        ASSERT_EQ(Allows(mask, id), ids.contains(id)) << vocab_size << " " << percent << " " << id;
      }
    }
  }
  EXPECT_EQ(seen.size(), 4U);
}

TEST(TokenMaskTest, BitsBeyondTheVocabularyDoNotCount) {
  TokenMask mask;
  SetBits(std::vector<std::uint32_t>{~0U, ~0U}, 40, &mask);
  EXPECT_EQ(mask.kind, TokenMask::Kind::kAll);
  mask.kind = TokenMask::Kind::kBits;
  mask.bits = {~0U};
  EXPECT_TRUE(Allows(mask, 31));
  EXPECT_FALSE(Allows(mask, 32));
  EXPECT_FALSE(Allows(mask, -1));
}

}  // namespace
}  // namespace inferd::spec
