// SPDX-License-Identifier: Apache-2.0
// Steps through Rank, from plans to sampled tokens, alone and in every kind of group.
#include "model/rank.h"

#include "unit/model/rank_set.h"
#include "unit/model/run_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <thread>

namespace inferd::model {
namespace {

spec::SamplingParams Greedy() {
  spec::SamplingParams params;
  params.temperature = 0;
  return params;
}

std::vector<std::int32_t> GoldenPrompt(const std::string& family, std::size_t size) {
  std::vector<std::int32_t> ids = ReadGolden(family).ints.at("input_ids");
  ids.resize(std::min(size, ids.size()));
  return ids;
}

std::unique_ptr<RankSet> MakeSet(const std::string& path, const RankSetOptions& options) {
  auto set = RankSet::Make(path, options);
  EXPECT_TRUE(set.ok()) << (set.ok() ? "" : set.error().message());
  return set.ok() ? *std::move(set) : nullptr;
}

RankSet::Results RunOrFail(RankSet& set, const std::vector<spec::StepPlan>& plans) {
  auto results = set.Run(plans);
  EXPECT_TRUE(results.ok()) << (results.ok() ? "" : results.error().message());
  return results.ok() ? *std::move(results) : RankSet::Results{};
}

struct Layout {
  std::string path;  // below the test data
  int tp = 1, pp = 1, ep = 1;
  bool expert_parallel = false;
};

void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.path << " tp " << layout.tp << " pp " << layout.pp << " ep " << layout.ep
       << (layout.expert_parallel ? " experts over tp" : "");
}

class RankLayoutTest : public testing::TestWithParam<Layout> {};

// Six sequences of different lengths, prefill mixed with decode, tokens read while they are in
// flight.
TEST_P(RankLayoutTest, GreedyTokensEqualTheReference) {
  const Layout& layout = GetParam();
  const std::string family = layout.path.substr(0, layout.path.find('/'));
  const Golden golden = ReadGolden(family);
  const auto& ids = golden.ints.at("input_ids");
  RankSetOptions options;
  options.parallel.tp = layout.tp;
  options.parallel.pp = layout.pp;
  options.parallel.ep = layout.ep;
  options.parallel.expert_parallel_in_tp = layout.expert_parallel;
  const auto set = MakeSet(DataPath(layout.path), options);
  ASSERT_NE(set, nullptr);
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::size_t size : {40U, 3U, 17U, 40U, 1U, 29U}) {
    prompts.emplace_back(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(size));
  }
  Generation generation;
  generation.groups = layout.ep;
  generation.turns = layout.pp;
  generation.new_tokens = 12;
  const auto plans = PlanGeneration(prompts, std::vector(prompts.size(), Greedy()), generation);
  const auto tokens = TokensOf(RunOrFail(*set, plans), prompts.size(), layout.ep);
  const auto& expected = golden.ints.at("greedy_ids");
  const auto& gaps = golden.floats.at("greedy_gaps");
  for (const std::size_t s : {0U, 3U}) {
    ASSERT_EQ(tokens[s].size(), 12U);
    for (std::size_t i = 0; i < 12 && gaps[i] > 0.3F; ++i) {
      EXPECT_EQ(tokens[s][i], expected[i]) << "sequence " << s << " token " << i;
    }
  }
  EXPECT_EQ(tokens[0], tokens[3]) << "equal sequences in different rows, steps and groups";
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         RankLayoutTest,
                         testing::Values(Layout{"llama"},
                                         Layout{"qwen2"},
                                         Layout{"qwen2/model.gguf"},
                                         Layout{"llama/model.gguf", 2},
                                         Layout{"qwen3", 3},
                                         Layout{"llama", 4},
                                         Layout{"qwen3", 1, 2},
                                         Layout{"qwen3", 2, 2},
                                         Layout{"gemma3", 2, 2},
                                         Layout{"mixtral", 2, 1, 2},
                                         Layout{"mixtral", 2, 1, 1, true},
                                         Layout{"qwen3-moe", 1, 2, 2},
                                         Layout{"deepseek-v3", 2},
                                         Layout{"deepseek-v2", 1, 2, 2},
                                         Layout{"qwen2-moe", 2, 2, 2}));

TEST(RankTest, ReplayContinuesTheSameRandomTokens) {
  const auto set = MakeSet(DataPath("qwen3"), {});
  ASSERT_NE(set, nullptr);
  spec::SamplingParams params;
  params.temperature = 1.5;
  params.seed = 5;
  params.frequency_penalty = 0.4;
  params.top_p = 0.95;
  const std::vector<std::int32_t> prompt = GoldenPrompt("qwen3", 20);
  Generation generation;
  const auto all =
      TokensOf(RunOrFail(*set, PlanGeneration({prompt}, {params}, generation)), 1, 1)[0];
  ASSERT_EQ(all.size(), 8U);
  ASSERT_TRUE(set->Join(2).ok());
  std::vector<std::int32_t> replayed = prompt;
  replayed.insert(replayed.end(), all.begin(), all.begin() + 3);
  generation.generation = 2;
  generation.new_tokens = 5;
  auto plans = PlanGeneration({replayed}, {params}, generation);
  plans[0].open_rows[0].num_prompt_tokens = static_cast<std::int32_t>(prompt.size());
  const auto rest = TokensOf(RunOrFail(*set, plans), 1, 1)[0];
  EXPECT_EQ(rest, (std::vector<std::int32_t>(all.begin() + 3, all.end())));
}

TEST(RankTest, PrefixHitGivesTheSameBits) {
  const auto set = MakeSet(DataPath("qwen2"), {});
  ASSERT_NE(set, nullptr);
  spec::SamplingParams params = Greedy();
  params.logprobs = 20;
  const std::vector<std::int32_t> prompt = GoldenPrompt("qwen2", 40);
  auto plans = PlanGeneration({prompt}, {params}, {.chunk = 40, .new_tokens = 1});
  ASSERT_EQ(plans.size(), 1U);
  spec::StepPlan hit;
  hit.generation = 1;
  hit.step = 1;
  hit.open_rows = plans[0].open_rows;
  hit.open_rows[0].row = 3;
  spec::RowWork work;
  work.row = 3;
  work.start = 32;  // the first page is taken from the sequence before
  work.count = 8;
  work.sample = true;
  work.reset_pages = true;
  work.new_pages = {0, 7};
  hit.fresh_pages = {{0, 7}};
  hit.work = {work};
  plans.push_back(hit);
  auto results = RunOrFail(*set, plans);
  const spec::SampledToken& cold = results[{0, 0}].sampled.at(0);
  const spec::SampledToken& warm = results[{1, 0}].sampled.at(0);
  EXPECT_EQ(cold.token, warm.token);
  EXPECT_EQ(cold.logprob, warm.logprob);
  ASSERT_EQ(warm.top.size(), 20U);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(cold.top[i].token, warm.top[i].token);
    EXPECT_EQ(cold.top[i].logprob, warm.top[i].logprob);
  }
}

TEST(RankTest, PromptLogprobsInSmallPieces) {
  RankSetOptions options;
  options.max_num_seqs = 2;  // logits of two rows at a time
  options.parallel.tp = 2;
  const auto set = MakeSet(DataPath("llama"), options);
  ASSERT_NE(set, nullptr);
  const Golden golden = ReadGolden("llama");
  const std::vector<std::int32_t> prompt = GoldenPrompt("llama", 40);
  spec::SamplingParams params = Greedy();
  params.prompt_logprobs = 3;
  const auto results =
      RunOrFail(*set, PlanGeneration({prompt}, {params}, {.chunk = 16, .new_tokens = 2}));
  std::vector<spec::SampledToken> scores;
  for (const auto& [key, result] : results) {
    for (const spec::PromptLogprobs& part : result.prompt_logprobs) {
      EXPECT_EQ(part.first, static_cast<std::int64_t>(scores.size()) + 1);
      scores.insert(scores.end(), part.tokens.begin(), part.tokens.end());
    }
  }
  ASSERT_EQ(scores.size(), prompt.size() - 1);
  const auto& logits = golden.floats.at("logits");
  const std::size_t vocab = logits.size() / prompt.size();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    double sum = 0;
    for (std::size_t v = 0; v < vocab; ++v) {
      sum += std::exp(static_cast<double>(logits[i * vocab + v]));
    }
    const double expected =
        logits[i * vocab + static_cast<std::size_t>(prompt[i + 1])] - std::log(sum);
    EXPECT_EQ(scores[i].token, prompt[i + 1]);
    EXPECT_NEAR(scores[i].logprob, expected, 2e-3) << i;
    EXPECT_EQ(scores[i].top.size(), 3U);
  }
}

TEST(RankTest, ReusedPagesAreClean) {
  const auto set = MakeSet(DataPath("mistral"), {});
  ASSERT_NE(set, nullptr);
  const std::vector<std::int32_t> first = GoldenPrompt("mistral", 40);
  const std::vector<std::int32_t> second = {7, 3, 99};
  const auto alone = TokensOf(RunOrFail(*set, PlanGeneration({second}, {Greedy()}, {})), 1, 1)[0];
  ASSERT_TRUE(set->Join(2).ok());
  auto plans = PlanGeneration({first}, {Greedy()}, {.generation = 2});
  const std::size_t before = plans.size();
  for (spec::StepPlan plan : PlanGeneration({second}, {Greedy()}, {.generation = 2})) {
    plan.step += static_cast<std::int64_t>(before);
    for (spec::RowWork& work : plan.work) {
      work.input_step += work.input_step >= 0 ? static_cast<std::int64_t>(before) : 0;
    }
    plans.push_back(plan);
  }
  auto results = RunOrFail(*set, plans);
  const auto tokens = TokensOf(results, 1, 1)[0];
  EXPECT_EQ(alone, std::vector<std::int32_t>(tokens.begin() + 8, tokens.end()));
}

TEST(RankTest, CountsTokensPerExpert) {
  RankSetOptions options;
  options.parallel.ep = 2;
  const auto set = MakeSet(DataPath("mixtral"), options);
  ASSERT_NE(set, nullptr);
  const std::vector<std::int32_t> prompt = GoldenPrompt("mixtral", 10);
  // One sequence: the second group has no rows, but its experts work.
  auto results =
      RunOrFail(*set, PlanGeneration({prompt}, {Greedy()}, {.groups = 2, .new_tokens = 1}));
  std::int64_t total = 0;
  for (const std::int32_t group : {0, 1}) {
    const auto& tokens = results[{0, group}].expert_tokens;
    EXPECT_EQ(tokens.size(), 2U);
    total += std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
  }
  EXPECT_EQ(total, 10 * 2 * 2) << "rows x top 2 x 2 layers";
}

TEST(RankTest, RefusesPlansItCannotObey) {
  const auto set = MakeSet(DataPath("llama"), {});
  ASSERT_NE(set, nullptr);
  const auto plans = PlanGeneration({{1, 2, 3}}, {Greedy()}, {.new_tokens = 2});
  spec::StepPlan stale = plans[0];
  stale.generation = 9;
  EXPECT_FALSE(RunStep(set->rank(0), stale).ok());
  ASSERT_TRUE(RunStep(set->rank(0), plans[0]).ok());
  EXPECT_FALSE(RunStep(set->rank(0), plans[0]).ok()) << "the same step twice";
  spec::StepPlan unknown = plans[1];
  unknown.work[0].row = 5;
  EXPECT_FALSE(RunStep(set->rank(0), unknown).ok()) << "a row that is not open";
  EXPECT_FALSE(
      set->rank(0)
          .Join(2, {.tp = std::move(comm::MakeFakeGroup(2)[0]), .ep = {}, .pp = {}, .ids = {}})
          .ok())
      << "a group of two for a plan of one";
  EXPECT_FALSE(RunStep(set->rank(0), plans[0]).ok()) << "not joined";
}

TEST(RankTest, AbortWakesARankThatWaitsForItsPeer) {
  RankSetOptions options;
  options.parallel.tp = 2;
  const auto set = MakeSet(DataPath("llama"), options);
  ASSERT_NE(set, nullptr);
  const auto plans = PlanGeneration({{1, 2, 3}}, {Greedy()}, {.new_tokens = 1});
  Result<std::optional<spec::StepResult>> result = std::optional<spec::StepResult>();
  std::thread waits([&] { result = RunStep(set->rank(0), plans[0]); });
  set->rank(0).Abort();
  waits.join();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kAborted);
  ASSERT_TRUE(set->Join(2).ok()) << "a new generation works again";
  EXPECT_EQ(
      RunOrFail(*set, PlanGeneration({{1, 2, 3}}, {Greedy()}, {.generation = 2, .new_tokens = 1}))
          .size(),
      1U);
}

}  // namespace
}  // namespace inferd::model
