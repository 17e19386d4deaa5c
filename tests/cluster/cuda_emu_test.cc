// SPDX-License-Identifier: Apache-2.0
// Real workers on the emulated CUDA device give the tokens of the CPU backend, alone and in groups.
#include "cluster/harness.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
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
  spec::CommBackend comm = spec::CommBackend::kNccl;
};

using Tokens = std::vector<std::vector<std::int32_t>>;

Tokens TokensOf(const std::string& device,
                const std::string& model,
                const spec::ParallelSpec& parallel,
                spec::CommBackend comm = spec::CommBackend::kAuto) {
  ServerOptions options;
  options.comm = comm;
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
  const Tokens tokens = TokensOf("cuda-emu", layout.model, layout.parallel, layout.comm);
  ASSERT_EQ(tokens.size(), static_cast<std::size_t>(kPrompts));
  EXPECT_EQ(tokens, Expected(layout.model));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    CudaEmuTest,
    testing::Values(
        Layout{"llama", "llama", Parallel(1, 1, 1)},
        Layout{"llama_tp2", "llama", Parallel(2, 1, 1)},
        Layout{"llama_tp2_host", "llama", Parallel(2, 1, 1), spec::CommBackend::kHost},
        Layout{"llama_pp2", "llama", Parallel(1, 2, 1)},
        Layout{"mixtral_ep2", "mixtral", Parallel(1, 1, 2)},
        Layout{"mixtral_tp2", "mixtral", Parallel(2, 1, 1)},
        Layout{"qwen3moe_tp2_ep2", "qwen3-moe", Parallel(2, 1, 2)},
        Layout{"qwen3moe_tp2_ep2_host", "qwen3-moe", Parallel(2, 1, 2), spec::CommBackend::kHost},
        Layout{"mixtral_tp3", "mixtral", Parallel(3, 1, 1)},
        Layout{"qwen2moe", "qwen2-moe", Parallel(1, 1, 1)},
        Layout{"gemma2_tp2", "gemma2", Parallel(2, 1, 1)},
        Layout{"gemma3_tp2_pp2", "gemma3", Parallel(2, 2, 1)}),
    [](const testing::TestParamInfo<Layout>& layout) { return layout.param.name; });

// The next step is on the device before the end of the one before it is known: what it then draws
// for a sequence that has ended is dropped, and a fault loses two steps.
class CudaEmuStepsAheadTest : public testing::TestWithParam<Layout> {};

TEST_P(CudaEmuStepsAheadTest, StopsCancelsAndFaultsLoseNothing) {
  constexpr std::int32_t kLong = 24;
  ServerOptions options;
  options.device = "cuda-emu";
  options.model = GetParam().model;
  options.parallel = GetParam().parallel;
  options.comm = GetParam().comm;
  options.step_deadline_ms = 60'000;
  Server server(options);
  ASSERT_NE(server.leader(), nullptr);
  const auto request = [&](std::size_t i) {
    leader::GenerateRequest one;
    one.prompt = RandomPrompts(kPrompts, kVocab, 24, 5)[i];
    one.max_tokens = kLong;
    one.num_speculative_tokens = 0;
    one.sampling.temperature = 1;
    one.sampling.seed = 40 + i;
    one.sampling.repetition_penalty = i == 1 ? 1.2 : 1;  // waits for its tokens
    return one;
  };
  const auto run = [&](const auto& change, const auto& meanwhile) {
    std::vector<std::uint32_t> slots;
    for (std::size_t i = 0; i < kPrompts; ++i) {
      leader::GenerateRequest one = request(i);
      change(i, one);
      slots.push_back(server.Submit(std::move(one)));
    }
    meanwhile(slots);
    std::vector<Answer> answers;
    for (const std::uint32_t slot : slots) {
      answers.push_back(server.collector().Wait(slot));
    }
    EXPECT_EQ(server.PagesInUseWhenIdle(), 0);
    return answers;
  };
  const auto as_it_is = [](std::size_t, leader::GenerateRequest&) {};
  const auto nothing = [](const auto&) {};
  Tokens expected;
  for (const Answer& answer : run(as_it_is, nothing)) {
    ASSERT_EQ(answer.tokens.size(), static_cast<std::size_t>(kLong)) << answer.error;
    expected.push_back(answer.tokens);
  }

  const auto stopped = run(
      [&](std::size_t i, auto& one) { one.stop_token_ids = {expected[i][3 + 4 * i]}; }, nothing);
  for (std::size_t i = 0; i < kPrompts; ++i) {
    const auto end = std::find(expected[i].begin(), expected[i].end(), expected[i][3 + 4 * i]);
    EXPECT_EQ(stopped[i].finish, leader::FinishReason::kStop);
    EXPECT_EQ(stopped[i].tokens, std::vector<std::int32_t>(expected[i].begin(), end + 1));
  }
  const auto first_tokens = [&](const std::vector<std::uint32_t>& slots) {
    for (const std::uint32_t slot : slots) {
      server.collector().WaitForTokens(slot, 3);
    }
  };
  const auto cancelled = run(as_it_is, [&](const auto& slots) {
    first_tokens(slots);
    for (std::size_t i = 0; i < kPrompts; i += 2) {
      server.leader()->Cancel({0, slots[i], 0}, -1);
    }
  });
  const auto killed = run(as_it_is, [&](const auto& slots) {
    first_tokens(slots);
    ASSERT_EQ(::kill(Server::WorkerPids().back(), SIGKILL), 0);
  });
  for (std::size_t i = 0; i < kPrompts; ++i) {
    EXPECT_TRUE(
        std::equal(cancelled[i].tokens.begin(), cancelled[i].tokens.end(), expected[i].begin()));
    EXPECT_GE(cancelled[i].tokens.size(), i % 2 == 0 ? 3U : static_cast<std::size_t>(kLong));
    EXPECT_EQ(killed[i].tokens, expected[i]) << killed[i].error;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         CudaEmuStepsAheadTest,
                         testing::Values(Layout{"llama", "llama", Parallel(1, 1, 1)},
                                         Layout{"llama_tp2", "llama", Parallel(2, 1, 1)},
                                         Layout{"llama_pp2", "llama", Parallel(1, 2, 1)}),
                         [](const testing::TestParamInfo<Layout>& layout) {
                           return layout.param.name;
                         });

// The peers of a dead rank wait for it inside a collective on their devices; they must leave it
// long before the step's deadline.
class CudaEmuKillTest : public testing::TestWithParam<Layout> {};

TEST_P(CudaEmuKillTest, PeersOfAKilledRankGoOnWithinSeconds) {
  ServerOptions options;
  options.device = "cuda-emu";
  options.model = GetParam().model;
  options.parallel = GetParam().parallel;
  options.comm = GetParam().comm;
  options.step_deadline_ms = 60'000;
  Server server(options);
  ASSERT_NE(server.leader(), nullptr);
  const std::vector<std::int32_t> prompt{5, 6, 7};
  const auto expected = server.Generate({prompt}, 24)[0].tokens;
  const std::vector<pid_t> workers = Server::WorkerPids();
  for (const std::size_t victim : {workers.size() - 1, std::size_t{0}}) {
    const std::uint32_t slot = server.Submit(prompt, 24);
    server.collector().WaitForTokens(slot, 4);
    const auto began = std::chrono::steady_clock::now();
    ASSERT_EQ(::kill(workers[victim], SIGKILL), 0);
    EXPECT_EQ(server.collector().Wait(slot).tokens, expected);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(15));
    if (::testing::Test::HasFailure()) {
      break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         CudaEmuKillTest,
                         testing::Values(Layout{"llama_tp2", "llama", Parallel(2, 1, 1)},
                                         Layout{"llama_tp2_pp2", "llama", Parallel(2, 2, 1)},
                                         Layout{"mixtral_ep2", "mixtral", Parallel(1, 1, 2)}),
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
