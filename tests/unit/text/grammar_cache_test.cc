// SPDX-License-Identifier: Apache-2.0
#include "text/grammar_cache.h"

#include "unit/text/cases.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <thread>

namespace inferd::text {
namespace {

std::unique_ptr<GrammarCache> MakeCache(std::size_t max_bytes) {
  auto tokenizer = TokenizerFromVocabulary("bpe");
  std::vector<std::int32_t> ends{tokenizer->eos_id().value_or(0)};
  return std::make_unique<GrammarCache>(std::move(tokenizer), std::move(ends), max_bytes);
}

TEST(GrammarCacheTest, GivesTheSameGrammarForTheSameSource) {
  const auto cache = MakeCache(1 << 20);
  const auto first = cache->Get(GrammarKind::kRegex, "a+");
  ASSERT_TRUE(first.ok()) << first.error().message();
  EXPECT_EQ(*cache->Get(GrammarKind::kRegex, "a+"), *first);
  EXPECT_NE(*cache->Get(GrammarKind::kRegex, "b+"), *first);
  EXPECT_FALSE(cache->Get(GrammarKind::kRegex, "(a").ok());
  EXPECT_FALSE(cache->Get(GrammarKind::kJsonSchema, "a+").ok()) << "the kind is part of the key";
}

TEST(GrammarCacheTest, StaysWithinItsBytesAndKeepsWhatIsUsed) {
  const auto cache = MakeCache(200'000);
  const auto kept = cache->Get(GrammarKind::kRegex, "kept");
  ASSERT_TRUE(kept.ok());
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(cache->Get(GrammarKind::kRegex, fmt::format("x{}", i)).ok());
    ASSERT_LE(cache->num_bytes(), 200'000U);
    ASSERT_EQ(*cache->Get(GrammarKind::kRegex, "kept"), *kept) << i;
  }
  EXPECT_GT(cache->num_bytes(), 100'000U);
}

TEST(GrammarCacheTest, ServesManyThreads) {
  const auto cache = MakeCache(60'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        auto grammar = cache->Get(GrammarKind::kRegex, fmt::format("[a-c]{{{}}}", 1 + i % 7));
        ASSERT_TRUE(grammar.ok());
        auto matcher = (*grammar)->NewMatcher();
        ASSERT_TRUE(matcher.ok());
        std::vector<std::uint32_t> words(64);
        ASSERT_TRUE(matcher->FillMask(words).ok());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace inferd::text
