// SPDX-License-Identifier: Apache-2.0
#include "worker/sim_rank.h"

#include "base/clock.h"
#include "base/file.h"
#include "unit/model/run_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>

namespace inferd::worker {
namespace {

using testing::HasSubstr;

/// A folder with the config of a small model and no weights.
std::string Folder() {
  const std::string folder = testing::TempDir() + "sim_rank_model";
  std::filesystem::create_directories(folder);
  const auto written = base::WriteFileAtomic(
      folder + "/config.json",
      R"({"architectures":["LlamaForCausalLM"],"vocab_size":1000,"hidden_size":256,
"intermediate_size":512,"num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,
"max_position_embeddings":4096,"eos_token_id":7})");
  EXPECT_TRUE(written.ok());
  return folder;
}

spec::LoadRequest Request(const std::string& device) {
  spec::LoadRequest request;
  request.model_path = Folder();
  request.device = device;
  request.kv_pages = 100;
  request.max_model_len = 1000;
  request.shard.layers = {0, 4};
  request.shard.has_embedding = true;
  request.shard.has_head = true;
  request.shard.vocab = {0, 1000};
  request.shard.q_heads = {0, 4};
  request.shard.kv_heads = {0, 2};
  request.shard.ffn = {0, 512};
  return request;
}

spec::RowWork Work(std::int64_t start, std::int32_t count) {
  spec::RowWork work;
  work.row = 5;
  work.start = start;
  work.count = count;
  work.sample = true;
  return work;
}

spec::StepPlan Prefill(std::vector<std::int32_t> prompt) {
  spec::StepPlan plan;
  plan.generation = 3;
  spec::OpenRow open;
  open.row = 5;
  open.num_prompt_tokens = static_cast<std::int32_t>(prompt.size());
  open.tokens = std::move(prompt);
  plan.open_rows.push_back(open);
  plan.work.push_back(Work(0, open.num_prompt_tokens));
  return plan;
}

spec::StepPlan Decode(std::int64_t step, std::int64_t start) {
  spec::StepPlan plan;
  plan.generation = 3;
  plan.step = step;
  plan.work.push_back(Work(start, 1));
  plan.work.back().input_step = step - 1;
  return plan;
}

TEST(SimRank, GivesTheScriptAndTakesThePredictedTime) {
  auto rank = MakeSimRank(Request("sim:A10/llama-3.1-8b"));
  ASSERT_TRUE(rank.ok()) << rank.error().message();
  EXPECT_THAT((*rank)->Describe(), HasSubstr("simulated A10 that runs llama-3.1-8b"));
  ASSERT_TRUE((*rank)->Join(3, {}).ok());
  auto first = model::RunStep(**rank, Prefill({11, 7, 13}));
  ASSERT_TRUE(first.ok()) << first.error().message();
  ASSERT_TRUE(first->has_value());
  EXPECT_EQ((*first)->sampled.at(0).token, 11);
  const std::int64_t began_ns = base::SteadyClock::Get().NowNs();
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 3; ++i) {
    auto next = model::RunStep(**rank, Decode(i + 1, 3 + i));
    ASSERT_TRUE(next.ok());
    tokens.push_back((*next)->sampled.at(0).token);
    EXPECT_GT((*next)->compute_ns, 500'000);
  }
  // Token 7 ends a text: the script leaves it out.
  EXPECT_THAT(tokens, testing::ElementsAre(13, 13, 11));
  EXPECT_GE(base::SteadyClock::Get().NowNs() - began_ns, 1'000'000);
}

TEST(SimRank, AnAbortEndsAStepThatWouldTakeLong) {
  auto rank = MakeSimRank(Request("sim:A10/llama-3.1-405b"));
  ASSERT_TRUE(rank.ok()) << rank.error().message();
  ASSERT_TRUE((*rank)->Join(3, {}).ok());
  const auto prompt = std::vector<std::int32_t>(512, 9);
  std::thread aborter([&] { (*rank)->Abort(); });
  const auto ended = model::RunStep(**rank, Prefill(prompt));
  aborter.join();
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.error().code(), Code::kAborted);
}

TEST(SimRank, AConstrainedRowTakesWhatItsMaskAllows) {
  auto rank = MakeSimRank(Request("sim:H200"));
  ASSERT_TRUE(rank.ok()) << rank.error().message();
  ASSERT_TRUE((*rank)->Join(3, {}).ok());
  spec::StepPlan plan = Prefill({11, 13});
  plan.open_rows[0].constrained = true;
  spec::TokenMask mask;
  mask.generation = 3;
  mask.row = 5;
  mask.kind = spec::TokenMask::Kind::kOnly;
  mask.tokens = {42, 43};
  (*rank)->GiveMask(mask);
  const auto result = model::RunStep(**rank, plan);
  ASSERT_TRUE(result.ok()) << result.error().message();
  EXPECT_EQ((*result)->sampled.at(0).token, 42);
}

TEST(SimRank, RefusesWhatIsNoProfile) {
  EXPECT_THAT(MakeSimRank(Request("sim:H300")).error().message(), HasSubstr("H300"));
  EXPECT_THAT(MakeSimRank(Request("sim")).error().message(), HasSubstr("sim:H100"));
  EXPECT_FALSE(MakeSimRank(Request("sim:H100/no-such-model")).ok());
  auto rank = MakeSimRank(Request("sim:H100"));
  ASSERT_TRUE(rank.ok());
  EXPECT_FALSE(model::RunStep(**rank, Prefill({1})).ok());  // not joined
}

}  // namespace
}  // namespace inferd::worker
