// SPDX-License-Identifier: Apache-2.0
// Real workers on the emulated CUDA device give the tokens of the CPU backend, alone and in groups.
#include "cluster/harness.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace inferd::cluster {
namespace {

constexpr int kPrompts = 4;
constexpr int kVocab = 256;
constexpr int kTokens = 12;

struct Layout {
  std::string name;
  std::string model;
  spec::ParallelSpec parallel;
};

using Tokens = std::vector<std::vector<std::int32_t>>;

Tokens TokensOf(const std::string& device,
                const std::string& model,
                const spec::ParallelSpec& parallel) {
  ServerOptions options;
  options.model = model;
  options.parallel = parallel;
  options.device = device;
  Server server(options);
  Tokens tokens;
  if (server.leader() != nullptr) {
    for (const Answer& answer : server.Generate(RandomPrompts(kPrompts, kVocab, 40, 7), kTokens)) {
      EXPECT_EQ(answer.finish, leader::FinishReason::kLength) << answer.error;
      tokens.push_back(answer.tokens);
    }
    EXPECT_EQ(server.PagesInUseWhenIdle(), 0);
  }
  return tokens;
}

const Tokens& Expected(const std::string& model) {
  static std::map<std::string, Tokens> cache;
  Tokens& tokens = cache[model];
  if (tokens.empty()) {
    tokens = TokensOf("cpu", model, Parallel(1, 1, 1));
  }
  return tokens;
}

class CudaEmuTest : public testing::TestWithParam<Layout> {};

TEST_P(CudaEmuTest, GivesTheTokensOfTheCpu) {
  const Layout& layout = GetParam();
  const Tokens tokens = TokensOf("cuda-emu", layout.model, layout.parallel);
  ASSERT_EQ(tokens.size(), static_cast<std::size_t>(kPrompts));
  EXPECT_EQ(tokens, Expected(layout.model));
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         CudaEmuTest,
                         testing::Values(Layout{"llama_tp2", "llama", Parallel(2, 1, 1)},
                                         Layout{"llama_pp2", "llama", Parallel(1, 2, 1)},
                                         Layout{"mixtral_ep2", "mixtral", Parallel(1, 1, 2)},
                                         Layout{"mixtral_tp2", "mixtral", Parallel(2, 1, 1)},
                                         Layout{"qwen3moe_tp2_ep2", "qwen3-moe", Parallel(2, 1, 2)},
                                         Layout{"qwen2moe", "qwen2-moe", Parallel(1, 1, 1)},
                                         Layout{"gemma2_tp2", "gemma2", Parallel(2, 1, 1)},
                                         Layout{"gemma3_tp2_pp2", "gemma3", Parallel(2, 2, 1)}),
                         [](const testing::TestParamInfo<Layout>& layout) {
                           return layout.param.name;
                         });

// A CUDA error is for good: the worker ends, another one takes its place, and no token changes.
TEST(CudaEmuFaultTest, ADeviceThatFailsIsReplacedWithItsWorker) {
  ServerOptions options;
  options.device = "cuda-emu";
  options.parallel = Parallel(2, 1, 1);
  const auto prompts = RandomPrompts(kPrompts, kVocab, 24, 5);
  const std::string file = testing::TempDir() + "inferd-fault-" + std::to_string(::getpid());
  std::ofstream(file) << "armed";
  ASSERT_EQ(::setenv("INFERD_TEST_FAULT", file.c_str(), 1), 0);
  Server server(options);
  ASSERT_NE(server.leader(), nullptr);
  EXPECT_FALSE(std::filesystem::exists(file)) << "no worker took the fault";
  Tokens tokens;
  for (const Answer& answer : server.Generate(prompts, 24)) {
    EXPECT_EQ(answer.finish, leader::FinishReason::kLength) << answer.error;
    tokens.push_back(answer.tokens);
  }
  std::uint64_t restarts = 0;
  for (const leader::ReplicaStats& stats : server.leader()->stats()) {
    restarts += stats.restarts;
  }
  EXPECT_GE(restarts, 1U);
  Tokens undisturbed;
  for (const Answer& answer : server.Generate(prompts, 24)) {
    undisturbed.push_back(answer.tokens);
  }
  EXPECT_EQ(tokens, undisturbed);
}

}  // namespace
}  // namespace inferd::cluster
