// SPDX-License-Identifier: Apache-2.0
// One step ahead of the device: the tokens that a step draws are the next one's inputs before the
// host knows them, and nothing but the time differs from steps that wait for each other.
#include "unit/model/rank_set.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace inferd::model {
namespace {

// A GPU where there is one: tests/gpu/check.sh.
std::string TestDevice() {
  const char* const device = std::getenv("INFERD_TEST_DEVICE");
  return device != nullptr ? device : "cuda-emu";
}

// The emulated device does nothing until something waits for it.
bool IsLazy() {
  const char* const streams = std::getenv("EMU_STREAMS");
  return streams != nullptr && std::string_view(streams) == "lazy";
}

std::vector<std::vector<std::int32_t>> Prompts(int count) {
  std::vector<std::vector<std::int32_t>> prompts;
  for (int s = 0; s < count; ++s) {
    auto& ids = prompts.emplace_back();
    for (int i = 0; i < 5 + 7 * s % 31; ++i) {
      ids.push_back(3 + (s * 31 + i * 37) % 250);
    }
  }
  return prompts;
}

std::vector<spec::SamplingParams> Drawn(std::size_t count) {
  std::vector<spec::SamplingParams> sampling(count);
  for (std::size_t s = 0; s < count; ++s) {
    sampling[s].temperature = s % 2 == 0 ? 0 : 0.9;
    sampling[s].seed = 100 + s;
    sampling[s].logprobs = s % 3 == 1 ? 2 : -1;
  }
  return sampling;
}

void ExpectTheSame(const RankSet::Results& got, const RankSet::Results& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [key, of_step] : expected) {
    const spec::StepResult& result = got.at(key);
    EXPECT_EQ(result.generation, of_step.generation);
    EXPECT_EQ(result.expert_tokens, of_step.expert_tokens) << "step " << key.first;
    EXPECT_GE(result.compute_ns, 0);
    ASSERT_EQ(result.sampled.size(), of_step.sampled.size()) << "step " << key.first;
    for (std::size_t i = 0; i < result.sampled.size(); ++i) {
      EXPECT_EQ(result.sampled[i].row, of_step.sampled[i].row) << "step " << key.first;
      EXPECT_EQ(result.sampled[i].token, of_step.sampled[i].token) << "step " << key.first;
      EXPECT_EQ(result.sampled[i].logprob, of_step.sampled[i].logprob) << "step " << key.first;
      EXPECT_EQ(result.sampled[i].rank, of_step.sampled[i].rank) << "step " << key.first;
      EXPECT_EQ(result.sampled[i].top.size(), of_step.sampled[i].top.size());
    }
  }
}

struct Case {
  std::string name, model;
  int tp = 1, pp = 1;
  Exchange exchange = Exchange::kHost;
  bool graphs = false;
  bool ahead = true;  // expected
};

class CudaEmuStepsAheadTest : public testing::TestWithParam<Case> {
 protected:
  static RankSetOptions Options() {
    RankSetOptions options;
    options.device = TestDevice();
    options.parallel.tp = GetParam().tp;
    options.parallel.pp = GetParam().pp;
    options.exchange = GetParam().exchange;
    if (GetParam().graphs) {
      options.cuda_graph_sizes = {1, 2, 4, 8};
    }
    return options;
  }
};

TEST_P(CudaEmuStepsAheadTest, GiveWhatStepsThatWaitGive) {
  Generation generation;
  generation.new_tokens = 9;
  const auto plans = PlanGeneration(Prompts(4), Drawn(4), generation);
  RankSet::Results waiting, early;
  RankSet::Ahead ahead;
  {
    auto set = RankSet::Make(DataPath(GetParam().model), Options());
    ASSERT_TRUE(set.ok()) << set.error().message();
    auto results = (*set)->Run(plans);
    ASSERT_TRUE(results.ok()) << results.error().message();
    waiting = *std::move(results);
  }
  auto set = RankSet::Make(DataPath(GetParam().model), Options());
  ASSERT_TRUE(set.ok()) << set.error().message();
  auto results = (*set)->RunAhead(plans, &ahead);
  ASSERT_TRUE(results.ok()) << results.error().message();
  ExpectTheSame(*results, waiting);
  // All but the first step, and no wait for the device lies between the two.
  const auto most = static_cast<std::int64_t>(plans.size()) - 1;
  EXPECT_EQ(ahead.steps, GetParam().ahead ? most : 0);
  if (IsLazy()) {
    EXPECT_EQ(ahead.before_the_end, ahead.steps);
  }
  if (GetParam().graphs) {
    EXPECT_GE((*set)->rank(0).graph_counts().replayed, 4U);
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases = {
      {.name = "llama", .model = "llama"},
      {.name = "llama_graphs", .model = "llama", .graphs = true},
      {.name = "experts_graphs", .model = "qwen3-moe", .graphs = true},
      {.name = "experts", .model = "qwen2-moe"},
      {.name = "tp2_host", .model = "llama", .tp = 2, .ahead = false},
      {.name = "pp2", .model = "llama", .pp = 2, .ahead = false},
  };
  if (TestDevice() == "cuda-emu") {  // where there are as many devices as one likes
    const std::vector<Case> several = {
        {.name = "tp2_nccl", .model = "llama", .tp = 2, .exchange = Exchange::kNccl},
        {.name = "tp2_peers_graphs",
         .model = "llama",
         .tp = 2,
         .exchange = Exchange::kPeers,
         .graphs = true},
        {.name = "tp3_nccl_experts", .model = "mixtral", .tp = 3, .exchange = Exchange::kNccl},
    };
    cases.insert(cases.end(), several.begin(), several.end());
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases,
                         CudaEmuStepsAheadTest,
                         testing::ValuesIn(Cases()),
                         [](const testing::TestParamInfo<Case>& of) { return of.param.name; });

// A rank by hand.
class CudaEmuStepsAheadOfTest : public testing::Test {
 protected:
  void Make(const std::vector<spec::SamplingParams>& sampling) {
    RankSetOptions options;
    options.device = TestDevice();
    options.max_num_seqs = 4;
    auto set = RankSet::Make(DataPath("llama"), options);
    ASSERT_TRUE(set.ok()) << set.error().message();
    set_ = *std::move(set);
    plans_ = PlanGeneration(Prompts(static_cast<int>(sampling.size())), sampling, {});
  }
  Rank& rank() { return set_->rank(0); }
  /// False, and true once the step before is finished.
  void ExpectItWaits(const spec::StepPlan& plan, const std::string& why) {
    EXPECT_FALSE(rank().MayBegin(plan)) << why;
    ASSERT_TRUE(rank().Finish().ok());
    EXPECT_TRUE(rank().MayBegin(plan)) << why;
  }

  std::unique_ptr<RankSet> set_;
  std::vector<spec::StepPlan> plans_;
};

TEST_F(CudaEmuStepsAheadOfTest, WhatTheHostMustDoComesAfterTheStepBefore) {
  Make(Drawn(2));
  ASSERT_TRUE(rank().Begin(plans_[0]).ok());
  ASSERT_TRUE(rank().MayBegin(plans_[1]));
  EXPECT_EQ(rank().num_under_way(), 1U);
  const auto opened = [&](auto change) {
    spec::StepPlan plan = plans_[1];
    spec::OpenRow open;
    open.row = 2;
    open.tokens = {5, 6, 7, 8};
    open.num_prompt_tokens = 4;
    spec::RowWork work;
    work.row = 2;
    work.count = 4;
    work.sample = work.reset_pages = true;
    work.new_pages = {20};
    change(open, work);
    plan.open_rows.push_back(std::move(open));
    plan.work.push_back(std::move(work));
    return plan;
  };
  EXPECT_TRUE(rank().MayBegin(opened([](auto&, auto&) {})));
  EXPECT_TRUE(rank().MayBegin(opened([](spec::OpenRow& open, auto&) {
    open.sampling.repetition_penalty = 1.2;
  }))) << "its first token depends on no other step";
  EXPECT_FALSE(
      rank().MayBegin(opened([](spec::OpenRow& open, auto&) { open.constrained = true; })));
  EXPECT_TRUE(
      rank().MayBegin(opened([](spec::OpenRow& open, auto&) { open.sampling.logprobs = 1; })));
  EXPECT_FALSE(rank().MayBegin(
      opened([](spec::OpenRow& open, auto&) { open.sampling.prompt_logprobs = 0; })));
  EXPECT_FALSE(
      rank().MayBegin(opened([](spec::OpenRow& open, auto&) { open.sampling.typical_p = 0.9; })));
  EXPECT_FALSE(rank().MayBegin(opened([](auto&, spec::RowWork& work) { work.embed = true; })));
  EXPECT_FALSE(rank().MayBegin(opened([](auto&, spec::RowWork& work) { work.draft = {7}; })));
  EXPECT_FALSE(rank().MayBegin(opened([](auto&, spec::RowWork& work) { work.row = 9; })))
      << "that Begin refuses";
  ASSERT_TRUE(rank().Begin(plans_[1]).ok());
  ExpectItWaits(plans_[2], "two are enough");
  ASSERT_TRUE(rank().Begin(plans_[2]).ok());
  EXPECT_EQ(rank().num_under_way(), 2U);
}

TEST_F(CudaEmuStepsAheadOfTest, ARowThatRemembersWaitsForItsToken) {
  auto sampling = Drawn(2);
  sampling[1].repetition_penalty = 1.3;
  Make(sampling);
  std::vector<spec::StepResult> results;
  std::int64_t waited = 0;
  for (const spec::StepPlan& plan : plans_) {
    while (!rank().MayBegin(plan)) {
      auto result = rank().Finish();
      ASSERT_TRUE(result.ok()) << result.error().message();
      ++waited;
      results.push_back(**std::move(result));
    }
    ASSERT_TRUE(rank().Begin(plan).ok());
  }
  results.push_back(**rank().Finish());
  EXPECT_EQ(waited, static_cast<std::int64_t>(plans_.size()) - 1);
  RankSetOptions options;
  options.device = TestDevice();
  auto alone = RankSet::Make(DataPath("llama"), options);
  ASSERT_TRUE(alone.ok());
  auto expected = (*alone)->Run(plans_);
  ASSERT_TRUE(expected.ok());
  for (const spec::StepResult& result : results) {
    const spec::StepResult& same = expected->at({result.step, 0});
    for (std::size_t i = 0; i < same.sampled.size(); ++i) {
      EXPECT_EQ(result.sampled[i].token, same.sampled[i].token) << "step " << result.step;
    }
  }
}

TEST_F(CudaEmuStepsAheadOfTest, AStepUnderWayLeavesNothingToTheNextGeneration) {
  Make(Drawn(2));
  const auto run = [&](std::uint64_t generation) {
    for (spec::StepPlan& plan : plans_) {
      plan.generation = generation;
    }
    RankSet::Ahead ahead;
    auto results = set_->RunAhead(plans_, &ahead);
    EXPECT_TRUE(results.ok()) << results.error().message();
    return TokensOf(*results, 2, 1);
  };
  const auto expected = run(1);
  // Left by a Join alone, by Drop, and by a plan that cannot be.
  for (std::uint64_t generation = 2; generation <= 6; generation += 2) {
    ASSERT_TRUE(set_->Join(generation).ok());
    for (spec::StepPlan& plan : plans_) {
      plan.generation = generation;
    }
    ASSERT_TRUE(rank().Begin(plans_[0]).ok());
    ASSERT_TRUE(rank().Begin(plans_[1]).ok());
    if (generation == 4) {
      rank().Drop();
      EXPECT_EQ(rank().num_under_way(), 0U);
      EXPECT_FALSE(rank().Begin(plans_[2]).ok()) << "not joined";
    } else if (generation == 6) {
      ASSERT_TRUE(rank().Finish().ok());
      spec::StepPlan plan = plans_[2];
      plan.work[0].new_pages = {9999};
      ASSERT_TRUE(rank().MayBegin(plan));
      EXPECT_FALSE(rank().Begin(plan).ok());
      EXPECT_EQ(rank().num_under_way(), 0U);
    }
    ASSERT_TRUE(set_->Join(generation + 1).ok());
    EXPECT_EQ(run(generation + 1), expected);
  }
}

// More rows than are sampled at once, and steps too large for a graph.
TEST_F(CudaEmuStepsAheadOfTest, ManyRowsAreQueuedPieceByPiece) {
  constexpr int kRows = 66;
  std::vector<std::vector<std::int32_t>> prompts;
  for (int s = 0; s < kRows; ++s) {
    prompts.push_back({3 + s, 4 + 2 * s});
  }
  Generation generation;
  generation.new_tokens = 4;
  generation.pages_per_sequence = 1;
  const auto plans = PlanGeneration(prompts, Drawn(kRows), generation);
  RankSetOptions options;
  options.device = TestDevice();
  options.max_num_seqs = kRows;
  options.max_batched_tokens = 2 * kRows;
  options.kv_pages = kRows;
  options.cuda_graph_sizes = {8, 64};
  std::vector<std::vector<std::vector<std::int32_t>>> tokens;
  for (const bool ahead : {false, true}) {
    auto set = RankSet::Make(DataPath("llama"), options);
    ASSERT_TRUE(set.ok()) << set.error().message();
    RankSet::Ahead counts;
    auto results = ahead ? (*set)->RunAhead(plans, &counts) : (*set)->Run(plans);
    ASSERT_TRUE(results.ok()) << results.error().message();
    EXPECT_EQ(counts.steps, ahead ? 3 : 0);
    if (IsLazy()) {
      EXPECT_EQ(counts.before_the_end, counts.steps);
    }
    tokens.push_back(TokensOf(*results, kRows, 1));
  }
  EXPECT_EQ(tokens[0], tokens[1]);
}

// More edits of logits than a batch of samples holds: the host waits in the middle of a step, which
// must not pass for the end of it.
TEST_F(CudaEmuStepsAheadOfTest, AWaitWithinAStepIsNotItsEnd) {
  constexpr int kRows = 24;
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<spec::SamplingParams> sampling(kRows);
  for (int s = 0; s < kRows; ++s) {
    prompts.push_back({3 + s, 4 + 2 * s});
    for (std::int32_t token = 0; token < 200; ++token) {
      sampling[static_cast<std::size_t>(s)].logit_bias.emplace_back(
          token + 3, static_cast<float>((token * 7 + s) % 11) - 5);
    }
  }
  Generation generation;
  generation.new_tokens = 5;
  generation.pages_per_sequence = 1;
  const auto plans = PlanGeneration(prompts, sampling, generation);
  RankSetOptions options;
  options.device = TestDevice();
  options.max_num_seqs = kRows;
  options.kv_pages = kRows;
  std::vector<std::vector<std::vector<std::int32_t>>> tokens;
  for (const bool ahead : {false, true}) {
    auto set = RankSet::Make(DataPath("llama"), options);
    ASSERT_TRUE(set.ok()) << set.error().message();
    RankSet::Ahead counts;
    auto results = ahead ? (*set)->RunAhead(plans, &counts) : (*set)->Run(plans);
    ASSERT_TRUE(results.ok()) << results.error().message();
    tokens.push_back(TokensOf(*results, kRows, 1));
  }
  EXPECT_EQ(tokens[0], tokens[1]);
}

// Graphs hold the addresses of the pages that sleeping gives back.
TEST_F(CudaEmuStepsAheadOfTest, GraphsAreRecordedAnewForANewCache) {
  Generation generation;
  generation.new_tokens = 9;
  RankSetOptions options;
  options.device = TestDevice();
  options.cuda_graph_sizes = {1, 2, 4, 8};
  auto set = RankSet::Make(DataPath("llama"), options);
  ASSERT_TRUE(set.ok()) << set.error().message();
  auto before = (*set)->Run(PlanGeneration(Prompts(4), Drawn(4), generation));
  ASSERT_TRUE(before.ok()) << before.error().message();
  const std::uint64_t recorded = (*set)->rank(0).graph_counts().recorded;
  EXPECT_GT(recorded, 0U);
  (*set)->rank(0).ReleaseMemory();
  generation.generation = 2;
  ASSERT_TRUE((*set)->Join(2).ok());
  auto after = (*set)->Run(PlanGeneration(Prompts(4), Drawn(4), generation));
  ASSERT_TRUE(after.ok()) << after.error().message();
  EXPECT_EQ((*set)->rank(0).graph_counts().recorded, 2 * recorded);
  EXPECT_EQ(TokensOf(*after, 4, 1), TokensOf(*before, 4, 1));
}

}  // namespace
}  // namespace inferd::model
