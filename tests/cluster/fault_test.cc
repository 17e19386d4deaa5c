// SPDX-License-Identifier: Apache-2.0
// Workers that die, hang or cannot load: every stream ends with exactly the tokens of an
// undisturbed run.
#include "cluster/harness.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

namespace inferd::cluster {
namespace {

constexpr int kStreams = 16;
constexpr int kVocab = 256;
constexpr int kTokens = 64;  // of the case without parameters

struct Case {
  std::string name;
  std::string model;
  spec::ParallelSpec parallel;
  std::string device = "cpu";
  int tokens = 64;
};

ServerOptions Options(const Case& c) {
  ServerOptions options;
  options.model = c.model;
  options.parallel = c.parallel;
  options.device = c.device;
  options.comm = c.device == "cpu" ? spec::CommBackend::kAuto : spec::CommBackend::kNccl;
  options.step_deadline_ms = 3'000;
  return options;
}

class FaultTest : public testing::TestWithParam<Case> {
 protected:
  std::vector<std::uint32_t> SubmitAll(Server& server) {
    std::vector<std::uint32_t> slots;
    for (const auto& prompt : RandomPrompts(kStreams, kVocab, 24, 11)) {
      slots.push_back(server.Submit(prompt, GetParam().tokens));
    }
    return slots;
  }

  std::vector<std::vector<std::int32_t>> WaitAll(Server& server,
                                                 const std::vector<std::uint32_t>& slots) {
    std::vector<std::vector<std::int32_t>> tokens;
    for (const std::uint32_t slot : slots) {
      const Answer answer = server.collector().Wait(slot);
      EXPECT_EQ(answer.finish, leader::FinishReason::kLength)
          << "slot " << slot << ": " << answer.error;
      tokens.push_back(answer.tokens);
    }
    return tokens;
  }

  std::uint64_t Restarts(Server& server) {
    std::uint64_t restarts = 0;
    for (const leader::ReplicaStats& stats : server.leader()->stats()) {
      restarts += stats.restarts;
    }
    return restarts;
  }
};

TEST_P(FaultTest, KilledWorkersChangeNoToken) {
  Server server(Options(GetParam()));
  ASSERT_NE(server.leader(), nullptr);
  const auto expected = WaitAll(server, SubmitAll(server));
  const std::size_t num_workers = Server::WorkerPids().size();
  for (std::size_t victim = 0; victim < num_workers; ++victim) {
    const auto slots = SubmitAll(server);
    // The victims die at different depths: in prefill, early and late in decode.
    server.collector().WaitForTokens(slots[victim % kStreams],
                                     victim * static_cast<std::size_t>(GetParam().tokens) * 5 / 16);
    const std::vector<pid_t> workers = Server::WorkerPids();
    ASSERT_EQ(workers.size(), num_workers);
    ASSERT_EQ(::kill(workers.front(), SIGKILL), 0);  // The oldest: rank after rank in turn.
    EXPECT_EQ(WaitAll(server, slots), expected) << "after killing worker " << victim;
    EXPECT_EQ(Restarts(server), victim + 1);
  }
  EXPECT_EQ(server.PagesInUseWhenIdle(), 0);
}

TEST_P(FaultTest, HungWorkerIsReplaced) {
  Server server(Options(GetParam()));
  ASSERT_NE(server.leader(), nullptr);
  const auto expected = WaitAll(server, SubmitAll(server));
  const auto slots = SubmitAll(server);
  server.collector().WaitForTokens(slots[0], 10);
  const std::vector<pid_t> workers = Server::WorkerPids();
  const pid_t victim = workers[workers.size() / 2];
  ASSERT_EQ(::kill(victim, SIGSTOP), 0);
  EXPECT_EQ(WaitAll(server, slots), expected);
  EXPECT_GE(Restarts(server), 1U);
  EXPECT_EQ(server.PagesInUseWhenIdle(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    FaultTest,
    testing::Values(Case{"tp2", "llama", Parallel(2, 1, 1)},
                    Case{"pp2", "llama", Parallel(1, 2, 1)},
                    Case{"ep2", "mixtral", Parallel(1, 1, 2)},
                    Case{"tp2_pp2", "qwen2", Parallel(2, 2, 1)},
                    Case{"cuda_emu_tp2", "llama", Parallel(2, 1, 1), "cuda-emu", 24},
                    Case{"cuda_emu_pp2", "llama", Parallel(1, 2, 1), "cuda-emu", 24},
                    Case{"cuda_emu_ep2", "mixtral", Parallel(1, 1, 2), "cuda-emu", 24}),
    [](const testing::TestParamInfo<Case>& c) { return c.param.name; });

TEST(FaultTest, OneReplicaServesWhileTheOtherIsReplaced) {
  Case two{"dp2", "llama", Parallel(1, 1, 1, 2)};
  Server server(Options(two));
  ASSERT_NE(server.leader(), nullptr);
  const std::vector<std::int32_t> prompt{5, 6, 7};
  const auto expected = server.Generate({prompt}, kTokens)[0].tokens;
  ASSERT_EQ(::kill(Server::WorkerPids()[0], SIGKILL), 0);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(server.Generate({prompt}, kTokens)[0].tokens, expected);
    EXPECT_EQ(server.leader()->phase(), leader::Phase::kReady);
  }
}

}  // namespace
}  // namespace inferd::cluster
