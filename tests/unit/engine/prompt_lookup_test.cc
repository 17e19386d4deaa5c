// SPDX-License-Identifier: Apache-2.0
#include "engine/prompt_lookup.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace inferd::engine {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens Guess(const Tokens& tokens, std::int64_t most, PromptLookupOptions options = {}) {
  Tokens draft;
  LookUp(tokens, options, most, &draft);
  return draft;
}

TEST(PromptLookup, GivesWhatFollowedTheLongestMatch) {
  EXPECT_EQ(Guess({7, 1, 2, 3, 8, 9, 5, 2, 3, 6, 1, 2, 3}, 2), (Tokens{8, 9}));
  // Of matches of the same length, the latest.
  EXPECT_EQ(Guess({1, 2, 8, 1, 2, 9, 1, 2}, 1), Tokens{9});
}

TEST(PromptLookup, NeedsTheShortestMatch) {
  EXPECT_EQ(Guess({5, 2, 8, 6, 2}, 3), Tokens{});
  EXPECT_EQ(Guess({5, 2, 8, 6, 2}, 3, {.max_ngram = 4, .min_ngram = 1}), (Tokens{8, 6, 2}));
  EXPECT_EQ(Guess({}, 3), Tokens{});
  EXPECT_EQ(Guess({1, 2}, 3), Tokens{});
  EXPECT_EQ(Guess({1, 2, 3, 1, 2}, 0), Tokens{});
}

TEST(PromptLookup, GoesOnInAPeriod) {
  EXPECT_EQ(Guess({4, 4, 4}, 4), (Tokens{4, 4, 4, 4}));
  EXPECT_EQ(Guess({1, 2, 3, 1, 2, 3, 1, 2}, 5), (Tokens{3, 1, 2, 3, 1}));
}

TEST(PromptLookup, AppendsAndLooksBackOnlySoFar) {
  Tokens draft{42};
  LookUp(Tokens{1, 2, 8, 1, 2}, {}, 1, &draft);
  EXPECT_EQ(draft, (Tokens{42, 8}));
  Tokens tokens{-1, -2, -3};
  tokens.resize(3 + static_cast<std::size_t>(kMaxLookback));
  std::iota(tokens.begin() + 3, tokens.end(), 0);
  tokens.push_back(-1);
  tokens.push_back(-2);
  EXPECT_EQ(Guess(tokens, 1), Tokens{});
}

TEST(GuessRecord, BeginsAndEndsByTheShareOfRightGuesses) {
  GuessRecord record;
  EXPECT_FALSE(record.Pays(false));
  int taken = 0;
  while (!record.Pays(false) && taken < 100) {
    record.Take(5, 5);
    ++taken;
  }
  EXPECT_LE(taken, 8);
  EXPECT_TRUE(record.Pays(true));
  taken = 0;
  while (record.Pays(true) && taken < 100) {
    record.Take(-1, 5);
    ++taken;
  }
  EXPECT_GT(taken, 5);
  EXPECT_LT(taken, 40);
}

}  // namespace
}  // namespace inferd::engine
