// SPDX-License-Identifier: Apache-2.0
#include "spec/memory_ledger.h"

#include "spec/kv_dtype.h"
#include "unit/spec/real_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace inferd::spec {
namespace {

using testing::HasSubstr;

std::vector<ShardPlan> Plan(const ModelSpec& model, const ParallelSpec& parallel) {
  auto shards = PlanShards(model, parallel, {});
  EXPECT_TRUE(shards.ok()) << (shards.ok() ? "" : shards.error().message());
  return shards.ok() ? *shards : std::vector<ShardPlan>();
}

TEST(MemoryLedger, CountsTheParametersThatModelCardsState) {
  EXPECT_EQ(CountParameters(Llama2_70B()), 68'976'648'192);
  EXPECT_EQ(CountParameters(Llama3_8B()), 8'030'261'248);
  EXPECT_EQ(CountParameters(Llama3_70B()), 70'553'706'496);
  EXPECT_EQ(CountParameters(Mixtral_8x7B()), 46'702'792'704);
  EXPECT_EQ(CountParameters(Qwen2_72B()), 72'706'203'648);
  EXPECT_EQ(CountParameters(Qwen3_30B_A3B()), 30'532'122'624);
  EXPECT_EQ(CountParameters(Qwen25_05B()), 494'032'768);
}

TEST(MemoryLedger, Llama70BInHalfPrecisionIs128GiBAnd320KiBPerToken) {
  const ModelSpec model = Llama2_70B();
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  EXPECT_NEAR(static_cast<double>(CountParameters(model)) * 2 / kGiB, 128.5, 0.05);
  EXPECT_EQ(KvValuesPerToken(model) * 2, 320 * 1024);
  EXPECT_EQ(KvValuesPerToken(Llama3_8B()) * 2, 128 * 1024);
  EXPECT_EQ(KvValuesPerToken(Mixtral_8x7B()) * 2, 128 * 1024);
  EXPECT_EQ(KvValuesPerToken(Qwen2_72B()) * 2, 320 * 1024);
  EXPECT_EQ(KvValuesPerToken(Qwen3_30B_A3B()) * 2, 96 * 1024);
  EXPECT_EQ(KvValuesPerToken(Qwen25_05B()) * 2, 12 * 1024);
}

// 61 layers of a latent of 512 and a key of 64 values; every rank of a tp group keeps all of it.
TEST(MemoryLedger, DeepseekV3Keeps70272BytesOfATokenOnEveryTpRank) {
  const ModelSpec model = DeepseekV3();
  EXPECT_EQ(CountParameters(model), 671'026'419'200);
  EXPECT_EQ(KvValuesPerToken(model) * 2, 70'272);
  EXPECT_EQ(KvBytesPerValue(KvDtype::kInt8, model) * 576, 576 + 4);
  const auto tp = PlanShards(model, {.tp = 8}, {});
  ASSERT_TRUE(tp.ok()) << tp.error().message();
  const auto ledger = MakeLedger(model, *tp, {});
  ASSERT_TRUE(ledger.ok());
  std::int64_t parameters = 0;
  for (const RankLedger& rank : ledger->ranks) {
    EXPECT_EQ(rank.kv_bytes_per_token, 70'272);
    parameters += rank.weight_bytes / 2;
  }
  // The latents' projections, routers and norms are whole on every rank.
  EXPECT_GT(parameters, CountParameters(model));
  EXPECT_LT(parameters, CountParameters(model) * 102 / 100);
  const auto pp = PlanShards(model, {.pp = 2}, {});
  ASSERT_TRUE(pp.ok());
  const auto stages = MakeLedger(model, *pp, {});
  ASSERT_TRUE(stages.ok());
  EXPECT_EQ(stages->ranks[0].kv_bytes_per_token + stages->ranks[1].kv_bytes_per_token, 70'272);
}

TEST(MemoryLedger, ShardsOfAnEvenCutAddUpToTheModel) {
  const ModelSpec model = Llama2_70B();
  const auto shards = Plan(model, {.tp = 8});
  std::int64_t sum = 0;
  for (const ShardPlan& shard : shards) {
    sum += CountParameters(model, shard);
  }
  // Norms are on every rank.
  const std::int64_t norms = (2 * model.num_layers + 1) * model.hidden_size;
  EXPECT_EQ(sum, CountParameters(model) + 7 * norms);
}

TEST(MemoryLedger, CutsTheKvCacheWithHeadsAndLayers) {
  const ModelSpec model = Llama2_70B();
  LedgerOptions options;
  const auto whole = MakeLedger(model, Plan(model, {}), options);
  const auto cut = MakeLedger(model, Plan(model, {.tp = 4, .pp = 2}), options);
  ASSERT_TRUE(whole.ok() && cut.ok());
  EXPECT_EQ(whole->ranks[0].kv_bytes_per_token, 320 * 1024);
  for (const RankLedger& rank : cut->ranks) {
    EXPECT_EQ(rank.kv_bytes_per_token, 40 * 1024);
  }
}

// Half of 16 bits; int8 has a float per token and head beside K and beside V: 4 bytes in 132.
TEST(MemoryLedger, CountsTheTypeOfTheKvCache) {
  const ModelSpec model = Llama3_8B();
  LedgerOptions options;
  const auto bytes_per_token = [&](std::string_view name) {
    const auto dtype = ParseKvDtype(name);
    EXPECT_TRUE(dtype.ok()) << name;
    options.kv_bytes_per_value = KvBytesPerValue(*dtype, model);
    const auto ledger = MakeLedger(model, Plan(model, {}), options);
    EXPECT_TRUE(ledger.ok()) << name;
    return ledger->ranks[0].kv_bytes_per_token;
  };
  EXPECT_EQ(bytes_per_token("auto"), 128 * 1024);
  EXPECT_EQ(bytes_per_token("float32"), 256 * 1024);
  EXPECT_EQ(bytes_per_token("bfloat16"), 128 * 1024);
  EXPECT_EQ(bytes_per_token("fp8"), 64 * 1024);
  EXPECT_EQ(bytes_per_token("fp8_e4m3"), 64 * 1024);
  EXPECT_EQ(bytes_per_token("int8"), 66 * 1024);
  EXPECT_EQ(bytes_per_token("int8_per_token_head"), 66 * 1024);
  const auto other = ParseKvDtype("fp8_e5m2");
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message().find("fp8_e4m3"), std::string::npos);
}

TEST(MemoryLedger, FillsTheBudgetWithWholePages) {
  const ModelSpec model = Llama3_8B();
  LedgerOptions options;
  options.budget_bytes = std::int64_t{24} << 30;
  const auto ledger = MakeLedger(model, Plan(model, {}), options);
  ASSERT_TRUE(ledger.ok()) << ledger.error().message();
  const RankLedger& rank = ledger->ranks[0];
  const std::int64_t used =
      rank.weight_bytes + rank.activation_bytes + rank.collective_bytes + rank.kv_bytes;
  const std::int64_t page = 32 * 128 * 1024;
  EXPECT_LE(used, options.budget_bytes);
  EXPECT_GT(used + page, options.budget_bytes);
  EXPECT_EQ(ledger->kv_tokens, ledger->kv_pages * 32);
  EXPECT_EQ(rank.collective_bytes, 0);
}

TEST(MemoryLedger, RefusesWhatDoesNotFitAndSaysWhatWould) {
  const ModelSpec model = Llama3_8B();
  LedgerOptions options;
  options.budget_bytes = std::int64_t{8} << 30;
  auto ledger = MakeLedger(model, Plan(model, {}), options);
  ASSERT_FALSE(ledger.ok());
  EXPECT_EQ(ledger.error().code(), Code::kResourceExhausted);
  EXPECT_THAT(ledger.error().message(), HasSubstr("give at least"));

  // Room for some sequences, but not for all.
  options.budget_bytes = (std::int64_t{16} << 30) + (std::int64_t{1} << 28);
  options.max_num_seqs = 1024;
  ledger = MakeLedger(model, Plan(model, {}), options);
  ASSERT_FALSE(ledger.ok());
  EXPECT_THAT(ledger.error().message(), HasSubstr("--max-num-seqs of at most"));
}

TEST(MemoryLedger, TakesKnownWeightBytes) {
  const ModelSpec model = Llama3_8B();
  LedgerOptions options;
  options.weight_bytes = {5, 7};
  const auto ledger = MakeLedger(model, Plan(model, {.tp = 2}), options);
  ASSERT_TRUE(ledger.ok());
  EXPECT_EQ(ledger->ranks[0].weight_bytes, 5);
  EXPECT_EQ(ledger->ranks[1].weight_bytes, 7);
  options.weight_bytes = {5};
  EXPECT_FALSE(MakeLedger(model, Plan(model, {.tp = 2}), options).ok());
}

TEST(MemoryLedger, DescribesEveryRank) {
  const ModelSpec model = Llama3_8B();
  LedgerOptions options;
  options.budget_bytes = std::int64_t{24} << 30;
  const auto ledger = MakeLedger(model, Plan(model, {.tp = 2}), options);
  ASSERT_TRUE(ledger.ok());
  const std::string text = Describe(*ledger);
  EXPECT_THAT(text, HasSubstr("8.03 billion parameters"));
  EXPECT_THAT(text, HasSubstr("7.48 GiB"));
  EXPECT_EQ(std::ranges::count(text, '\n'), 4);
}

}  // namespace
}  // namespace inferd::spec
