// SPDX-License-Identifier: Apache-2.0
#include "spec/memory_ledger.h"
#include "spec/parallel.h"
#include "unit/spec/real_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace inferd::spec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<ShardPlan> Plan(const ModelSpec& model,
                            const ParallelSpec& parallel,
                            const CutGranularity& cut = {}) {
  auto shards = PlanShards(model, parallel, cut);
  EXPECT_TRUE(shards.ok()) << (shards.ok() ? "" : shards.error().message());
  return shards.ok() ? *shards : std::vector<ShardPlan>();
}

std::string Refusal(const ModelSpec& model,
                    const ParallelSpec& parallel,
                    const CutGranularity& cut = {}) {
  auto shards = PlanShards(model, parallel, cut);
  EXPECT_FALSE(shards.ok());
  return shards.ok() ? "" : shards.error().message();
}

std::vector<std::int64_t> SizesOf(const std::vector<ShardPlan>& shards, Range ShardPlan::*part) {
  std::vector<std::int64_t> sizes;
  for (const ShardPlan& shard : shards) {
    sizes.push_back((shard.*part).size());
  }
  return sizes;
}

// Q5_0 attention output, Q4_K or Q6_K down: what the default model's file has.
constexpr CutGranularity kQwenCut = {.attention_out = 32, .ffn = 256};

TEST(PlanShards, DealsHeadsInGroupsUnevenWhereTheyMustBe) {
  const ModelSpec model = Qwen25_05B();
  EXPECT_THAT(SizesOf(Plan(model, {.tp = 2}, kQwenCut), &ShardPlan::q_heads), ElementsAre(7, 7));
  EXPECT_THAT(SizesOf(Plan(model, {.tp = 3}, kQwenCut), &ShardPlan::q_heads), ElementsAre(5, 5, 4));
  EXPECT_THAT(SizesOf(Plan(model, {.tp = 4}, kQwenCut), &ShardPlan::q_heads),
              ElementsAre(4, 3, 4, 3));
  EXPECT_THAT(SizesOf(Plan(model, {.tp = 4}, kQwenCut), &ShardPlan::kv_heads),
              ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(SizesOf(Plan(model, {.tp = 2}, kQwenCut), &ShardPlan::ffn), ElementsAre(2560, 2304));
  EXPECT_THAT(SizesOf(Plan(model, {.tp = 3}, kQwenCut), &ShardPlan::ffn),
              ElementsAre(1792, 1536, 1536));
  EXPECT_THAT(SizesOf(Plan(model, {.tp = 4}, kQwenCut), &ShardPlan::ffn),
              ElementsAre(1280, 1280, 1280, 1024));
}

TEST(PlanShards, ARankMayTouchTwoKvHeads) {
  const ModelSpec model = Qwen25_05B();
  const auto shards = Plan(model, {.tp = 3}, kQwenCut);
  ASSERT_EQ(shards.size(), 3U);
  EXPECT_EQ(shards[1].kv_heads, (Range{0, 2}));
  EXPECT_THAT(KvHeadOfQuery(model, shards[1]), ElementsAre(0, 0, 1, 1, 1));
  EXPECT_THAT(KvHeadOfQuery(model, shards[2]), ElementsAre(0, 0, 0, 0));
}

TEST(PlanShards, CutsLlama70BEvenly) {
  const auto shards = Plan(Llama2_70B(), {.tp = 8, .pp = 2});
  ASSERT_EQ(shards.size(), 16U);
  for (const ShardPlan& shard : shards) {
    EXPECT_EQ(shard.q_heads.size(), 8);
    EXPECT_EQ(shard.kv_heads.size(), 1);
    EXPECT_EQ(shard.ffn.size(), 3584);
    EXPECT_EQ(shard.vocab.size(), 4000);
    EXPECT_EQ(shard.layers.size(), 40);
    EXPECT_EQ(shard.has_embedding, shard.stage == 0);
    EXPECT_EQ(shard.has_head, shard.stage == 1);
    EXPECT_EQ(shard.is_sampler(), shard.rank == 8);
  }
}

TEST(PlanShards, CutsTheHeadsOfALatentAndKeepsItWhole) {
  const auto shards = PlanShards(DeepseekV3(), {.tp = 3}, {});
  ASSERT_TRUE(shards.ok()) << shards.error().message();
  EXPECT_EQ((*shards)[0].q_heads, (Range{0, 43}));
  EXPECT_EQ((*shards)[2].q_heads, (Range{86, 128}));
  for (const ShardPlan& shard : *shards) {
    EXPECT_EQ(shard.kv_heads, (Range{0, 1}));
    EXPECT_EQ(KvHeadOfQuery(DeepseekV3(), shard),
              std::vector<std::int32_t>(static_cast<std::size_t>(shard.q_heads.size()), 0));
  }
}

TEST(PlanShards, ReplicatesKvHeadsWhenThereAreFewerThanRanks) {
  const auto shards = Plan(Qwen3_30B_A3B(), {.tp = 8});
  std::map<std::int64_t, int> holders;
  for (const ShardPlan& shard : shards) {
    ASSERT_EQ(shard.kv_heads.size(), 1);
    ++holders[shard.kv_heads.begin];
  }
  EXPECT_THAT(holders,
              ElementsAre(std::pair(0, 2), std::pair(1, 2), std::pair(2, 2), std::pair(3, 2)));
}

TEST(PlanShards, PutsHeadBordersOnBlocksOfTheOutputProjection) {
  ModelSpec model = MakeSpec("qwen2.5-7b", {152'064, 3584, 28, 28, 4, 128, 18'944});
  const auto shards = Plan(model, {.tp = 4}, {.attention_out = 256, .ffn = 256});
  for (const ShardPlan& shard : shards) {
    EXPECT_EQ(shard.q_heads.begin * 128 % 256, 0);
  }
  EXPECT_THAT(SizesOf(shards, &ShardPlan::q_heads), ElementsAre(8, 6, 8, 6));
}

TEST(PlanShards, DealsExpertsOverGroups) {
  const auto shards = Plan(Mixtral_8x7B(), {.tp = 2, .ep = 2});
  ASSERT_EQ(shards.size(), 4U);
  EXPECT_EQ(shards[1].experts, (Range{0, 4}));
  EXPECT_EQ(shards[2].experts, (Range{4, 8}));
  EXPECT_EQ(shards[1].expert_ffn, (Range{7168, 14'336}));
  EXPECT_EQ(shards[2].group, 1);
  EXPECT_EQ(shards[2].tp_rank, 0);
}

TEST(PlanShards, DealsWholeExpertsInsideATpGroup) {
  const auto shards = Plan(Mixtral_8x7B(), {.tp = 2, .ep = 2, .expert_parallel_in_tp = true});
  EXPECT_EQ(shards[1].experts, (Range{2, 4}));
  EXPECT_EQ(shards[2].experts, (Range{4, 6}));
  EXPECT_EQ(shards[1].expert_ffn, (Range{0, 14'336}));
}

TEST(PlanShards, BalancesStagesWithEmbeddingAndHead) {
  // A vocabulary of 152k rows weighs as much as several of these small layers.
  const ModelSpec model = Qwen25_05B();
  const auto shards = Plan(model, {.pp = 4});
  const auto layers = SizesOf(shards, &ShardPlan::layers);
  EXPECT_LT(layers[0], layers[1]);
  EXPECT_LT(layers[3], layers[2]);
  std::int64_t heaviest = 0;
  for (const ShardPlan& shard : shards) {
    heaviest = std::max(heaviest, CountParameters(model, shard));
  }
  // Dealt evenly, the outer stages would hold 6 layers and the table.
  auto even = Plan(model, {.pp = 4, .pp_partition = {6, 6, 6, 6}});
  EXPECT_LT(heaviest, CountParameters(model, even[0]));
}

TEST(PlanShards, TakesAGivenPartition) {
  const auto shards = Plan(Llama3_8B(), {.pp = 2, .pp_partition = {12, 20}});
  EXPECT_EQ(shards[0].layers, (Range{0, 12}));
  EXPECT_EQ(shards[1].layers, (Range{12, 32}));
  EXPECT_THAT(Refusal(Llama3_8B(), {.pp = 2, .pp_partition = {12, 12}}),
              HasSubstr("24 layers, but the model has 32"));
  EXPECT_THAT(Refusal(Llama3_8B(), {.pp = 2, .pp_partition = {32}}),
              HasSubstr("1 entries, but --pp is 2"));
  EXPECT_THAT(Refusal(Llama3_8B(), {.pp = 2, .pp_partition = {0, 32}}),
              HasSubstr("at least one layer"));
}

TEST(PlanShards, RefusesWhatCannotBeCutNamingWhatWorks) {
  EXPECT_THAT(Refusal(Qwen25_05B(), {.tp = 16}),
              HasSubstr("--tp 16 is more than the 14 attention heads; use 1 to 14"));
  EXPECT_THAT(Refusal(Llama3_8B(), {.tp = 32}, {.attention_out = 256, .ffn = 1}),
              HasSubstr("use 1 to 16"));
  EXPECT_THAT(Refusal(Llama3_8B(), {.pp = 33}),
              HasSubstr("--pp 33 is more than the 32 layers; use 1 to 32"));
  EXPECT_THAT(Refusal(Llama3_8B(), {.ep = 2}), HasSubstr("no experts; use --ep 1"));
  EXPECT_THAT(Refusal(Mixtral_8x7B(), {.ep = 16}), HasSubstr("8 experts"));
  EXPECT_THAT(Refusal(Llama3_8B(), {.tp = 0}), HasSubstr("--tp is 0"));
  ModelSpec narrow = Llama3_8B();
  narrow.intermediate_size = 512;
  EXPECT_THAT(Refusal(narrow, {.tp = 4}, {.attention_out = 1, .ffn = 256}),
              HasSubstr("--tp 4 is more than the 2 parts that the FFN (512 in units of 256) can be "
                        "cut into; use 1 to 2"));
}

// --- Whatever is asked for: the shards cover the model exactly once, and every cut is where it may
// be. ---

struct Random {
  std::mt19937_64 engine;
  std::int64_t Between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine);
  }
};

// Ranges of ranks that differ only in `axis` must tile [0, total).
void ExpectTiles(const std::vector<ShardPlan>& shards,
                 Range ShardPlan::*part,
                 std::int64_t total,
                 std::int64_t block) {
  std::int64_t at = 0;
  for (const ShardPlan& shard : shards) {
    const Range range = shard.*part;
    EXPECT_EQ(range.begin, at);
    EXPECT_GT(range.size(), 0);
    EXPECT_EQ(range.begin % block, 0);
    at = range.end;
  }
  EXPECT_EQ(at, total);
}

std::vector<ShardPlan> Select(const std::vector<ShardPlan>& shards, int stage, int group) {
  std::vector<ShardPlan> chosen;
  for (const ShardPlan& shard : shards) {
    if (shard.stage == stage && shard.group == group) {
      chosen.push_back(shard);
    }
  }
  return chosen;
}

void CheckPlan(const ModelSpec& model,
               const ParallelSpec& parallel,
               const CutGranularity& cut,
               const std::vector<ShardPlan>& shards) {
  ASSERT_EQ(shards.size(), static_cast<std::size_t>(parallel.ranks_per_replica()));
  std::int64_t layer = 0;
  for (int stage = 0; stage < parallel.pp; ++stage) {
    std::set<std::int64_t> experts;
    for (int group = 0; group < parallel.ep; ++group) {
      const auto ranks = Select(shards, stage, group);
      ASSERT_EQ(ranks.size(), static_cast<std::size_t>(parallel.tp));
      ExpectTiles(ranks, &ShardPlan::vocab, model.vocab_size, 1);
      ExpectTiles(ranks, &ShardPlan::q_heads, model.num_heads, 1);
      const bool dense =
          std::ranges::any_of(model.layers, [](const LayerSpec& l) { return !l.moe; });
      if (dense) {
        ExpectTiles(ranks, &ShardPlan::ffn, model.intermediate_size, cut.ffn);
      }
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const ShardPlan& shard = ranks[i];
        EXPECT_EQ(shard.rank, (stage * parallel.ep + group) * parallel.tp + static_cast<int>(i));
        EXPECT_EQ(shard.layers.begin, layer);
        EXPECT_EQ(shard.q_heads.begin * model.head_dim % cut.attention_out, 0);
        const auto map = KvHeadOfQuery(model, shard);
        for (std::size_t q = 0; q < map.size(); ++q) {
          const std::int64_t head = shard.q_heads.begin + static_cast<std::int64_t>(q);
          EXPECT_EQ(shard.kv_heads.begin + map[q], head / (model.num_heads / model.num_kv_heads));
          EXPECT_TRUE(shard.kv_heads.contains(shard.kv_heads.begin + map[q]));
        }
        if (parallel.expert_parallel_in_tp || i == 0) {
          for (std::int64_t e = shard.experts.begin; e < shard.experts.end; ++e) {
            EXPECT_TRUE(experts.insert(e).second) << "expert " << e << " twice";
          }
        }
      }
      if (model.moe.num_experts > 0 && !parallel.expert_parallel_in_tp) {
        ExpectTiles(
            ranks, &ShardPlan::expert_ffn, model.moe.expert_intermediate_size, cut.expert_ffn);
      }
    }
    EXPECT_EQ(experts.size(), static_cast<std::size_t>(model.moe.num_experts));
    layer = Select(shards, stage, 0).front().layers.end;
  }
  EXPECT_EQ(layer, model.num_layers);
}

TEST(PlanShards, CoversEveryRandomModelExactlyOnce) {
  Random random{std::mt19937_64(20240601)};
  int planned = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::int64_t kv_heads = random.Between(1, 8);
    Sizes sizes{};
    sizes.kv_heads = kv_heads;
    sizes.heads = kv_heads * random.Between(1, 9);
    sizes.head_dim = 32 * random.Between(1, 4);
    sizes.hidden = 64 * random.Between(1, 8);
    sizes.layers = random.Between(1, 12);
    sizes.ffn = 256 * random.Between(1, 20);
    sizes.vocab = random.Between(40, 5000);
    const bool moe = random.Between(0, 1) == 1;
    ModelSpec model =
        moe ? MakeMoeSpec("random", sizes, random.Between(2, 16), 2, 256 * random.Between(1, 9))
            : MakeSpec("random", sizes);
    ParallelSpec parallel;
    parallel.tp = static_cast<int>(random.Between(1, 9));
    parallel.pp = static_cast<int>(random.Between(1, 4));
    parallel.ep = moe ? static_cast<int>(random.Between(1, 4)) : 1;
    parallel.expert_parallel_in_tp = moe && random.Between(0, 1) == 1;
    const std::int64_t blocks[] = {1, 32, 256};
    CutGranularity cut;
    cut.attention_out = blocks[random.Between(0, 2)];
    cut.ffn = blocks[random.Between(0, 2)];
    cut.expert_ffn = blocks[random.Between(0, 2)];
    if (sizes.heads * sizes.head_dim % cut.attention_out != 0) {
      cut.attention_out = 32;  // such a tensor could not be stored
    }
    const auto shards = PlanShards(model, parallel, cut);
    if (!shards.ok()) {
      EXPECT_EQ(shards.error().code(), Code::kInvalidArgument);
      EXPECT_THAT(shards.error().message(), HasSubstr("use "));
      continue;
    }
    ++planned;
    CheckPlan(model, parallel, cut, *shards);
    if (HasFailure()) {
      FAIL() << "round " << round << ": tp " << parallel.tp << " heads " << sizes.heads << "/"
             << kv_heads;
    }
  }
  EXPECT_GT(planned, 1000);
}

}  // namespace
}  // namespace inferd::spec
