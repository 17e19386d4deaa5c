// SPDX-License-Identifier: Apache-2.0
#include "engine/block_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <unordered_map>
#include <vector>

namespace inferd::engine {
namespace {

constexpr std::int32_t kPage = 4;

std::vector<std::int32_t> Tokens(std::int32_t first, std::size_t count) {
  std::vector<std::int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<Hash128> KeysOf(const std::vector<std::int32_t>& tokens) {
  std::vector<Hash128> keys;
  PrefixHasher({5, 6}, kPage).Extend(tokens, "", &keys);
  return keys;
}

std::span<const std::int32_t> Block(const std::vector<std::int32_t>& tokens, std::size_t i) {
  return std::span(tokens).subspan(i * kPage, kPage);
}

/// Allocates and commits the full blocks of `tokens`; returns the pages.
std::vector<std::int32_t> Fill(BlockManager* blocks, const std::vector<std::int32_t>& tokens) {
  const auto keys = KeysOf(tokens);
  std::vector<std::int32_t> pages;
  EXPECT_TRUE(blocks->Allocate(static_cast<std::int64_t>(keys.size()), 0, &pages));
  std::uint64_t serial = BlockManager::kRoot;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    serial = blocks->Commit(pages[i], keys[i], Block(tokens, i), serial);
  }
  return pages;
}

std::vector<std::int32_t> Hits(const BlockManager& blocks,
                               const std::vector<std::int32_t>& tokens,
                               std::int64_t limit = 99) {
  BlockManager::Prefix prefix;
  blocks.Lookup(KeysOf(tokens), tokens, limit, &prefix);
  return prefix.pages;
}

TEST(BlockManager, AllocatesAllOrNothing) {
  BlockManager blocks(4, kPage);
  std::vector<std::int32_t> pages;
  EXPECT_FALSE(blocks.Allocate(5, 0, &pages));
  EXPECT_TRUE(pages.empty());
  EXPECT_TRUE(blocks.Allocate(4, 0, &pages));
  EXPECT_EQ(std::set<std::int32_t>(pages.begin(), pages.end()).size(), 4U);
  EXPECT_EQ(blocks.num_used(), 4);
  blocks.Release(pages);
  EXPECT_EQ(blocks.num_free(), 4);
  EXPECT_TRUE(blocks.Audit().ok());
}

TEST(BlockManager, PrefersAdjacentPages) {
  BlockManager blocks(1000, kPage);
  std::vector<std::int32_t> a;
  std::vector<std::int32_t> b;
  ASSERT_TRUE(blocks.Allocate(10, 16, &a));
  ASSERT_TRUE(blocks.Allocate(10, 16, &b));
  for (int i = 0; i < 16; ++i) {  // both grow in turn, into the room kept for them
    ASSERT_TRUE(blocks.Allocate(1, 0, &a));
    ASSERT_TRUE(blocks.Allocate(1, 0, &b));
  }
  for (std::size_t i = 1; i < a.size(); ++i) {
    EXPECT_EQ(a[i], a[i - 1] + 1);
    EXPECT_EQ(b[i], b[i - 1] + 1);
  }
}

TEST(BlockManager, FindsTheLongestPrefix) {
  BlockManager blocks(16, kPage);
  const auto tokens = Tokens(0, 16);
  const auto pages = Fill(&blocks, tokens);
  EXPECT_EQ(Hits(blocks, tokens), pages);
  EXPECT_EQ(Hits(blocks, tokens, 2).size(), 2U);
  auto other = tokens;
  other[9] = 77;
  EXPECT_EQ(Hits(blocks, other).size(), 2U);
  EXPECT_EQ(Hits(blocks, Tokens(4, 12)).size(), 0U);  // equal block, other place
}

TEST(BlockManager, UnreferencedBlocksStayUntilNeeded) {
  BlockManager blocks(4, kPage);
  const auto tokens = Tokens(0, 12);
  auto pages = Fill(&blocks, tokens);
  blocks.Release(pages);
  EXPECT_EQ(blocks.num_cached(), 3);
  EXPECT_EQ(blocks.num_available(), 4);
  const auto hits = Hits(blocks, tokens);
  EXPECT_EQ(hits, pages);
  blocks.Acquire(hits);
  EXPECT_EQ(blocks.num_used(), 3);
  std::vector<std::int32_t> more;
  EXPECT_FALSE(blocks.Allocate(2, 0, &more));  // acquired blocks are not evicted
  blocks.Release(hits);
  EXPECT_TRUE(blocks.Allocate(2, 0, &more));  // the free one, then the end of the chain
  EXPECT_EQ(Hits(blocks, tokens).size(), 2U);
  EXPECT_TRUE(blocks.Audit().ok());
}

TEST(BlockManager, EvictsTheLeastRecentlyUsed) {
  BlockManager blocks(3, kPage);
  const auto a = Tokens(0, 4);
  const auto b = Tokens(100, 4);
  const auto c = Tokens(200, 4);
  for (const auto& tokens : {a, b, c}) {
    blocks.Release(Fill(&blocks, tokens));
  }
  blocks.Acquire(Hits(blocks, a));
  blocks.Release(Hits(blocks, a));  // a is the newest now
  std::vector<std::int32_t> pages;
  ASSERT_TRUE(blocks.Allocate(1, 0, &pages));
  EXPECT_EQ(Hits(blocks, a).size(), 1U);
  EXPECT_EQ(Hits(blocks, b).size(), 0U);
  EXPECT_EQ(Hits(blocks, c).size(), 1U);
}

TEST(BlockManager, ACollisionOfKeysMisses) {
  BlockManager blocks(8, kPage);
  const std::vector<Hash128> key(2, Hash128{1, 1});
  const auto a = Tokens(0, 4);
  const auto b = Tokens(50, 4);
  std::vector<std::int32_t> pages;
  ASSERT_TRUE(blocks.Allocate(2, 0, &pages));
  blocks.Commit(pages[0], key[0], a, BlockManager::kRoot);
  BlockManager::Prefix prefix;
  blocks.Lookup(key, b, 9, &prefix);
  EXPECT_TRUE(prefix.pages.empty());
  blocks.Lookup(key, a, 9, &prefix);
  EXPECT_EQ(prefix.pages.size(), 1U);
  blocks.Commit(pages[1], key[0], b, BlockManager::kRoot);  // takes the key over
  blocks.Lookup(key, a, 9, &prefix);
  EXPECT_TRUE(prefix.pages.empty());
  blocks.Release(pages);
  EXPECT_TRUE(blocks.Audit().ok());
}

// The parents' keys collide and their tokens differ: a child of one must not be found below the
// other.
TEST(BlockManager, ACollisionOfParentsDoesNotLeadToTheOthersChild) {
  BlockManager blocks(8, kPage);
  const Hash128 parent_key{1, 1};
  const Hash128 child_key{2, 2};
  const auto parent_a = Tokens(0, 4);
  const auto parent_b = Tokens(50, 4);
  const auto child = Tokens(90, 4);
  std::vector<std::int32_t> pages;
  ASSERT_TRUE(blocks.Allocate(3, 0, &pages));
  const auto serial_a = blocks.Commit(pages[0], parent_key, parent_a, BlockManager::kRoot);
  blocks.Commit(pages[1], child_key, child, serial_a);
  blocks.Commit(pages[2], parent_key, parent_b, BlockManager::kRoot);
  auto tokens = parent_b;
  tokens.insert(tokens.end(), child.begin(), child.end());
  BlockManager::Prefix prefix;
  blocks.Lookup(std::vector<Hash128>{parent_key, child_key}, tokens, 9, &prefix);
  EXPECT_EQ(prefix.pages.size(), 1U);
}

TEST(BlockManager, EqualBlocksAreCachedOnce) {
  BlockManager blocks(8, kPage);
  const auto tokens = Tokens(0, 8);
  const auto first = Fill(&blocks, tokens);
  const auto second = Fill(&blocks, tokens);  // computed at the same time by another sequence
  EXPECT_EQ(Hits(blocks, tokens), first);
  blocks.Release(second);
  EXPECT_EQ(blocks.num_free(), 6);
  blocks.Release(first);
  EXPECT_EQ(blocks.num_cached(), 2);
  EXPECT_TRUE(blocks.Audit().ok());
}

TEST(BlockManager, ChildrenOfAnEvictedParentAreReplaced) {
  BlockManager blocks(3, kPage);
  const auto tokens = Tokens(0, 8);
  const auto keys = KeysOf(tokens);
  std::vector<std::int32_t> pages;
  ASSERT_TRUE(blocks.Allocate(2, 0, &pages));
  const auto parent = blocks.Commit(pages[0], keys[0], Block(tokens, 0), BlockManager::kRoot);
  blocks.Commit(pages[1], keys[1], Block(tokens, 1), parent);
  blocks.Release(std::span(pages).first(1));  // only the child stays referenced
  std::vector<std::int32_t> others;
  ASSERT_TRUE(blocks.Allocate(2, 0, &others));
  EXPECT_EQ(Hits(blocks, tokens).size(), 0U);
  const auto again = blocks.Commit(others[0], keys[0], Block(tokens, 0), BlockManager::kRoot);
  EXPECT_EQ(Hits(blocks, tokens).size(), 1U);  // the old child hangs on a parent that is gone
  blocks.Commit(others[1], keys[1], Block(tokens, 1), again);
  EXPECT_EQ(Hits(blocks, tokens), others);
  EXPECT_TRUE(blocks.Audit().ok());
}

TEST(PageBitmap, NextEqualsALinearSearch) {
  std::mt19937_64 random(3);
  for (const std::int64_t size : {1, 63, 64, 65, 4096, 4097, 300'000}) {
    PageBitmap bitmap(size, false);
    std::set<std::int64_t> reference;
    for (int i = 0; i < 300; ++i) {
      const auto page = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size));
      if (random() % 3 != 0) {
        bitmap.Insert(page);
        reference.insert(page);
      } else {
        bitmap.Erase(page);
        reference.erase(page);
      }
      const auto from = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size + 1));
      const auto next = reference.lower_bound(from);
      ASSERT_EQ(bitmap.Next(from), next == reference.end() ? -1 : *next)
          << size << " from " << from;
      ASSERT_EQ(bitmap.Contains(page), reference.contains(page));
    }
    EXPECT_EQ(PageBitmap(size, true).Next(size - 1), size - 1);
  }
}

TEST(HashIndex, EqualsAMap) {
  std::mt19937_64 random(4);
  HashIndex index(200);
  std::unordered_map<std::uint64_t, std::uint32_t> reference;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t name = random() % 300;
    const Hash128 key{name % 97 * 513, name};  // crowded home slots
    const auto found = reference.find(name);
    ASSERT_EQ(index.Find(key), found == reference.end() ? HashIndex::kNone : found->second);
    if (found != reference.end()) {
      index.Erase(key);
      reference.erase(found);
    } else if (reference.size() < 200) {
      index.Insert(key, static_cast<std::uint32_t>(i));
      reference.emplace(name, static_cast<std::uint32_t>(i));
    }
    ASSERT_EQ(index.size(), reference.size());
  }
}

}  // namespace
}  // namespace inferd::engine
