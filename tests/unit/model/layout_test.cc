// SPDX-License-Identifier: Apache-2.0
// Every cut of a model gives the logits of the whole one, and a row's bits depend on nothing but
// the row.
#include "unit/model/harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace inferd::model {
namespace {

using Sequences = std::vector<std::vector<std::int32_t>>;

Sequences RandomSequences(std::initializer_list<std::size_t> sizes) {
  std::mt19937 generator(7);
  Sequences sequences;
  for (const std::size_t size : sizes) {
    std::vector<std::int32_t> ids(size);
    std::generate(
        ids.begin(), ids.end(), [&] { return static_cast<std::int32_t>(generator() % 256); });
    sequences.push_back(std::move(ids));
  }
  return sequences;
}

// Prefill in unequal pieces, mixed with other sequences' single tokens, as a scheduler would.
Schedule Mixed(const Sequences& sequences) {
  Schedule schedule;
  std::vector<std::int64_t> done(sequences.size());
  for (std::size_t turn = 0;; ++turn) {
    std::vector<Piece> step;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      const std::int64_t left = static_cast<std::int64_t>(sequences[s].size()) - done[s];
      const std::int64_t count = std::min<std::int64_t>(left, (turn + s) % 3 == 0 ? 9 : 1);
      if (count > 0) {
        step.push_back({s, done[s], count});
        done[s] += count;
      }
    }
    if (step.empty()) {
      return schedule;
    }
    schedule.push_back(std::move(step));
  }
}

struct Layout {
  std::string family;
  int tp = 1, pp = 1, ep = 1;
  bool expert_parallel = false;
  std::string file = {};  // below the family's folder; empty: the folder
};

void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.family << " tp " << layout.tp << " pp " << layout.pp << " ep " << layout.ep
       << (layout.expert_parallel ? " experts over tp" : "");
}

spec::ParallelSpec ParallelOf(const Layout& layout) {
  spec::ParallelSpec parallel;
  parallel.tp = layout.tp;
  parallel.pp = layout.pp;
  parallel.ep = layout.ep;
  parallel.expert_parallel_in_tp = layout.expert_parallel;
  return parallel;
}

class LayoutTest : public testing::TestWithParam<Layout> {};

TEST_P(LayoutTest, LogitsEqualTheWholeModel) {
  const Sequences sequences = RandomSequences({30, 13, 21});
  ShardSetOptions options;
  options.max_model_len = 40;
  options.kv_dtype = spec::KvDtype::kF32;
  auto whole = ShardSet::Make(DataPath(GetParam().family), options);
  options.parallel = ParallelOf(GetParam());
  auto cut = ShardSet::Make(DataPath(GetParam().family), options);
  ASSERT_TRUE(whole.ok() && cut.ok())
      << (whole.ok() ? cut.error().message() : whole.error().message());
  auto expected = (*whole)->Run(sequences, Mixed(sequences));
  auto actual = (*cut)->Run(sequences, Mixed(sequences));
  ASSERT_TRUE(expected.ok() && actual.ok())
      << (expected.ok() ? actual.error().message() : expected.error().message());
  const auto vocab = static_cast<std::ptrdiff_t>((*whole)->model().vocab_size);
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const auto& a = (*expected)[s];
    const auto& b = (*actual)[s];
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(a[i], b[i], 1e-3 * std::max(1.0F, std::abs(a[i])))
          << "sequence " << s << " logit " << i;
    }
    for (std::ptrdiff_t row = 0; row < static_cast<std::ptrdiff_t>(sequences[s].size()); ++row) {
      const auto first =
          std::max_element(a.begin() + row * vocab, a.begin() + (row + 1) * vocab) - a.begin();
      const auto second =
          std::max_element(b.begin() + row * vocab, b.begin() + (row + 1) * vocab) - b.begin();
      EXPECT_EQ(first, second);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dense,
                         LayoutTest,
                         testing::Values(Layout{"llama", 2},
                                         Layout{"llama", 3},
                                         Layout{"llama", 4},
                                         Layout{"llama", 1, 2},
                                         Layout{"llama", 2, 2},
                                         Layout{"qwen3", 2},
                                         Layout{"qwen3", 3},
                                         Layout{"qwen3", 4, 2},
                                         Layout{"qwen2", 2},
                                         Layout{"qwen2", 3},
                                         Layout{"qwen2", 4},
                                         Layout{"qwen2", 2, 2},
                                         Layout{"mistral", 3},
                                         Layout{"mistral", 7},
                                         Layout{"gemma2", 2},
                                         Layout{"gemma3", 4, 2},
                                         Layout{"gemma3", 3},
                                         Layout{"phi3", 2, 2},
                                         Layout{"llama3", 4}));
INSTANTIATE_TEST_SUITE_P(Experts,
                         LayoutTest,
                         testing::Values(Layout{"mixtral", 2},
                                         Layout{"mixtral", 1, 1, 2},
                                         Layout{"mixtral", 2, 1, 2},
                                         Layout{"mixtral", 1, 1, 4},
                                         Layout{"mixtral", 2, 1, 1, true},
                                         Layout{"mixtral", 1, 2, 2},
                                         Layout{"mixtral", 2, 1, 2, true},
                                         Layout{"qwen2-moe", 2, 1, 2},
                                         Layout{"qwen2-moe", 4},
                                         Layout{"qwen2-moe", 2, 1, 1, true},
                                         Layout{"qwen2-moe-sparse", 1, 4},
                                         Layout{"qwen2-moe-sparse", 2, 2, 2},
                                         Layout{"qwen3-moe", 3},
                                         Layout{"qwen3-moe", 2, 1, 3},
                                         Layout{"qwen3-moe", 2, 2, 2},
                                         Layout{"qwen3-moe", 3, 1, 1, true},
                                         Layout{"deepseek-v2", 2},
                                         Layout{"deepseek-v2", 1, 2},
                                         Layout{"deepseek-v2", 1, 1, 2},
                                         Layout{"deepseek-v3", 4},
                                         Layout{"deepseek-v3", 3, 2},
                                         Layout{"deepseek-v3", 2, 1, 2},
                                         Layout{"deepseek-v3", 2, 1, 1, true}));

// As served, rounded activations and all: no sum is cut, so a dense model cut by tp and pp gives
// the very bits of one rank.
class DenseBitsTest : public testing::TestWithParam<Layout> {};

TEST_P(DenseBitsTest, CutsDoNotChangeABit) {
  const Sequences sequences = RandomSequences({30, 13, 21});
  ShardSetOptions options;
  options.max_model_len = 40;
  const std::string path = DataPath(GetParam().family, GetParam().file);
  auto whole = ShardSet::Make(path, options);
  options.parallel = ParallelOf(GetParam());
  auto cut = ShardSet::Make(path, options);
  ASSERT_TRUE(whole.ok() && cut.ok())
      << (whole.ok() ? cut.error().message() : whole.error().message());
  auto expected = (*whole)->Run(sequences, Mixed(sequences));
  auto actual = (*cut)->Run(sequences, Mixed(sequences));
  ASSERT_TRUE(expected.ok() && actual.ok());
  EXPECT_EQ(*expected, *actual);
}

INSTANTIATE_TEST_SUITE_P(Dense,
                         DenseBitsTest,
                         testing::Values(Layout{"llama", 3},
                                         Layout{"qwen2", 2},
                                         Layout{"qwen2", 4, 2},
                                         Layout{"qwen2", 3, 1, 1, false, "model.gguf"},
                                         Layout{"qwen3", 4},
                                         Layout{"mistral", 7},
                                         Layout{"gemma2", 2},
                                         Layout{"gemma3", 3, 2},
                                         Layout{"phi3", 4}));

class BitwiseTest : public testing::TestWithParam<Layout> {};

TEST_P(BitwiseTest, ChunksAndBatchesDoNotChangeABit) {
  const Sequences sequences = RandomSequences({45, 13, 34, 1});
  ShardSetOptions options;
  options.max_model_len = 64;
  options.parallel = ParallelOf(GetParam());
  auto set = ShardSet::Make(DataPath(GetParam().family), options);
  ASSERT_TRUE(set.ok()) << set.error().message();
  const auto whole = (*set)->Run(sequences, InChunks(sequences, 64));
  ASSERT_TRUE(whole.ok()) << whole.error().message();
  for (const std::int64_t chunk : {1, 7, 32}) {
    const auto chunked = (*set)->Run(sequences, InChunks(sequences, chunk));
    ASSERT_TRUE(chunked.ok()) << chunked.error().message();
    EXPECT_EQ(*whole, *chunked) << "chunks of " << chunk;
  }
  const auto mixed = (*set)->Run(sequences, Mixed(sequences));
  ASSERT_TRUE(mixed.ok()) << mixed.error().message();
  EXPECT_EQ(*whole, *mixed) << "in a batch";
}

TEST(ThreadsTest, TwoThreadsGiveTheBitsOfOne) {
  const Sequences sequences = RandomSequences({45});
  for (const std::string family : {"qwen2", "qwen3-moe", "deepseek-v3"}) {
    ShardSetOptions options;
    options.max_model_len = 64;
    auto one = ShardSet::Make(DataPath(family), options);
    options.threads = 2;
    auto two = ShardSet::Make(DataPath(family), options);
    ASSERT_TRUE(one.ok() && two.ok());
    const auto expected = (*one)->Run(sequences, InChunks(sequences, 64));
    const auto actual = (*two)->Run(sequences, InChunks(sequences, 64));
    ASSERT_TRUE(expected.ok() && actual.ok());
    EXPECT_EQ(*expected, *actual) << family;
  }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         BitwiseTest,
                         testing::Values(Layout{"llama"},
                                         Layout{"qwen2"},
                                         Layout{"qwen3", 2},
                                         Layout{"gemma2"},
                                         Layout{"gemma3"},
                                         Layout{"phi3-longrope"},
                                         Layout{"mixtral"},
                                         Layout{"qwen2-moe", 2},
                                         Layout{"qwen3-moe", 1, 1, 2},
                                         Layout{"deepseek-v2", 2},
                                         Layout{"deepseek-v3"},
                                         Layout{"mistral", 1, 2}));

}  // namespace
}  // namespace inferd::model
