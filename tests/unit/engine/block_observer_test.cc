// SPDX-License-Identifier: Apache-2.0
// What an observer is told is what the prefix cache holds.
#include "engine/block_observer.h"

#include "unit/engine/scheduler_fixture.h"

#include <map>
#include <set>
#include <string>
#include <vector>

namespace inferd::engine {
namespace {

/// What someone outside makes of the events.
class Follower : public BlockObserver {
 public:
  struct Block {
    std::optional<std::uint64_t> parent;
    std::vector<std::int32_t> tokens;
    std::string salt;
    friend bool operator==(const Block&, const Block&) = default;
  };

  void OnStored(const BlockName& name,
                std::span<const std::int32_t> tokens,
                std::string_view salt) override {
    EXPECT_FALSE(blocks.contains(name.hash)) << "stored twice";
    blocks[name.hash] = {name.parent, {tokens.begin(), tokens.end()}, std::string(salt)};
    most = std::max(most, blocks.size());
  }
  void OnRemoved(std::uint64_t hash) override {
    EXPECT_EQ(blocks.erase(hash), 1U) << "removed, but was not stored";
    ++num_removed;
  }
  void OnCleared() override {
    blocks.clear();
    ++num_cleared;
  }

  std::map<std::uint64_t, Block> blocks;
  std::size_t most = 0;
  int num_removed = 0, num_cleared = 0;
};

class BlockObserverTest : public SchedulerTest {
 protected:
  void StartWith(Hash128 secret) {
    scheduler_.emplace(options_, clock_, PrefixHasher(secret, options_.page_size));
    scheduler_->Observe(&follower_);
    replica_.emplace(options_, kVocab);
  }

  std::vector<std::uint64_t> NamesOf(const std::vector<std::int32_t>& tokens,
                                     const std::string& salt = "") const {
    std::vector<Hash128> keys;
    PrefixHasher::Stable(options_.page_size).Extend(tokens, salt, &keys);
    std::vector<std::uint64_t> names;
    for (const Hash128& key : keys) {
      names.push_back(key.low);
    }
    return names;
  }

  Follower follower_;
};

TEST_F(BlockObserverTest, ChainsOfFullBlocksAreToldWithTheirTokens) {
  StartWith({1, 2});
  const SequenceRequest request = Request(1, 10, 3);  // 12 positions are computed: three pages
  Add(request);
  Drain();
  std::vector<std::int32_t> tokens = request.prompt;
  tokens.insert(tokens.end(), output_[1].begin(), output_[1].end());
  const auto names = NamesOf(tokens);
  ASSERT_EQ(names.size(), 3U);
  ASSERT_EQ(follower_.blocks.size(), 3U);
  EXPECT_EQ(follower_.blocks[names[0]].parent, std::nullopt);
  EXPECT_EQ(follower_.blocks[names[1]].parent, names[0]);
  EXPECT_EQ(follower_.blocks[names[2]].parent, names[1]);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(follower_.blocks[names[i]].tokens,
              std::vector<std::int32_t>(tokens.begin() + static_cast<std::ptrdiff_t>(i * 4),
                                        tokens.begin() + static_cast<std::ptrdiff_t>(i * 4 + 4)));
  }
}

TEST_F(BlockObserverTest, AHitIsNotToldAgainAndItsContinuationHangsOnIt) {
  StartWith({1, 2});
  SequenceRequest request = Request(1, 12, 1);
  Add(request);
  Drain();
  const auto before = follower_.blocks;
  request.id = 2;
  request.prompt.insert(request.prompt.end(), {7, 7, 7, 7, 7});
  Add(request);
  Drain();
  EXPECT_GT(first_[2].num_cached_tokens, 0);
  const auto names = NamesOf(request.prompt);
  EXPECT_EQ(follower_.blocks.size(), before.size() + 1);
  EXPECT_EQ(follower_.blocks[names[3]].parent, names[2]);
}

TEST_F(BlockObserverTest, NamesDependOnTokensAndSaltNotOnTheSecret) {
  StartWith({1, 2});
  Add(Request(1, 9, 1));
  SequenceRequest salted = Request(1, 9, 1);
  salted.id = 2;
  salted.cache_salt = "s";
  Add(salted);
  Drain();
  EXPECT_EQ(follower_.blocks.size(), 4U);
  const std::uint64_t name = NamesOf(salted.prompt, "s")[0];
  ASSERT_TRUE(follower_.blocks.contains(name));
  EXPECT_EQ(follower_.blocks[name].salt, "s");
  const auto first = follower_.blocks;
  follower_ = Follower();
  StartWith({3, 4});
  Add(Request(1, 9, 1));
  Add(salted);
  Drain();
  EXPECT_EQ(follower_.blocks, first);
  // Who stored an index of names relies on this very number.
  EXPECT_EQ(NamesOf({1, 2, 3, 4})[0], 4229925669361334400U);
}

TEST_F(BlockObserverTest, WhatIsEvictedIsToldAndAResetClears) {
  options_.num_pages = 16;
  StartWith({1, 2});
  for (std::uint64_t id = 1; id <= 12; ++id) {
    Add(Request(id, 21, 4));
    Drain();
  }
  EXPECT_GT(follower_.num_removed, 20);
  EXPECT_EQ(static_cast<std::int64_t>(follower_.blocks.size()),
            scheduler_->Stats().kv_pages_cached);
  EXPECT_LE(follower_.most, 16U);
  // The last prompt is held, the first is not.
  EXPECT_TRUE(follower_.blocks.contains(NamesOf(Request(12, 21, 4).prompt)[0]));
  EXPECT_FALSE(follower_.blocks.contains(NamesOf(Request(1, 21, 4).prompt)[0]));
  scheduler_->Reset(7);
  EXPECT_TRUE(follower_.blocks.empty());
  EXPECT_EQ(follower_.num_cleared, 1);
}

}  // namespace
}  // namespace inferd::engine
