// SPDX-License-Identifier: Apache-2.0
// Every layout gives the tokens of --tp 1: dense and MoE models, uneven cuts, pipelines, expert
// groups, replicas.
#include "cluster/harness.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace inferd::cluster {
namespace {

constexpr int kPrompts = 8;
constexpr int kVocab = 256;
constexpr int kTokens = 16;

struct Layout {
  std::string name;
  std::string model;
  spec::ParallelSpec parallel;
};

std::vector<std::vector<std::int32_t>> TokensOf(const std::vector<Answer>& answers) {
  std::vector<std::vector<std::int32_t>> tokens;
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.finish, leader::FinishReason::kLength) << answer.error;
    tokens.push_back(answer.tokens);
  }
  return tokens;
}

const std::vector<std::vector<std::int32_t>>& Expected(const std::string& model) {
  static std::map<std::string, std::vector<std::vector<std::int32_t>>> cache;
  auto& tokens = cache[model];
  if (tokens.empty()) {
    ServerOptions options;
    options.model = model;
    Server server(options);
    if (server.leader() != nullptr) {
      tokens = TokensOf(server.Generate(RandomPrompts(kPrompts, kVocab, 40, 7), kTokens));
    }
  }
  return tokens;
}

class ParallelTest : public testing::TestWithParam<Layout> {};

TEST_P(ParallelTest, GivesTheTokensOfOneRank) {
  const Layout& layout = GetParam();
  ServerOptions options;
  options.model = layout.model;
  options.parallel = layout.parallel;
  Server server(options);
  ASSERT_NE(server.leader(), nullptr);
  EXPECT_EQ(Server::WorkerPids().size(),
            static_cast<std::size_t>(layout.parallel.dp * layout.parallel.ranks_per_replica()));
  const auto tokens = TokensOf(server.Generate(RandomPrompts(kPrompts, kVocab, 40, 7), kTokens));
  EXPECT_EQ(server.PagesInUseWhenIdle(), 0);
  server.leader()->Stop();
  EXPECT_EQ(tokens, Expected(layout.model));
}

spec::ParallelSpec ExpertsInTp(int tp) {
  spec::ParallelSpec parallel;
  parallel.tp = tp;
  parallel.expert_parallel_in_tp = true;
  return parallel;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    ParallelTest,
    testing::Values(Layout{"llama_tp2", "llama", Parallel(2, 1, 1, 1)},
                    Layout{"llama_tp3", "llama", Parallel(3, 1, 1, 1)},
                    Layout{"qwen3_tp4", "qwen3", Parallel(4, 1, 1, 1)},
                    Layout{"llama_pp2", "llama", Parallel(1, 2, 1, 1)},
                    Layout{"qwen2_tp2_pp2", "qwen2", Parallel(2, 2, 1, 1)},
                    Layout{"llama_dp2", "llama", Parallel(1, 1, 1, 2)},
                    Layout{"gemma3_tp2", "gemma3", Parallel(2, 1, 1, 1)},
                    Layout{"mixtral_tp2_ep2", "mixtral", Parallel(2, 1, 2, 1)},
                    Layout{"mixtral_ep2", "mixtral", Parallel(1, 1, 2, 1)},
                    Layout{"mixtral_ep_in_tp", "mixtral", ExpertsInTp(2)},
                    Layout{"qwen3moe_tp2_ep2", "qwen3-moe", Parallel(2, 1, 2, 1)},
                    Layout{"qwen3moe_ep_in_tp", "qwen3-moe", ExpertsInTp(2)},
                    Layout{"qwen2moe_pp2_ep2", "qwen2-moe", Parallel(1, 2, 2, 1)},
                    Layout{"mixtral_dp2_tp2", "mixtral", Parallel(2, 1, 1, 2)}),
    [](const testing::TestParamInfo<Layout>& layout) { return layout.param.name; });

}  // namespace
}  // namespace inferd::cluster
