// SPDX-License-Identifier: Apache-2.0
// A server that sleeps: memory goes back to the system, and waking changes no token.
#include "cluster/harness.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace inferd::cluster {
namespace {

constexpr int kVocab = 256;
constexpr int kTokens = 60;

/// Resident bytes of all workers.
std::int64_t Resident() {
  std::int64_t sum = 0;
  for (const pid_t pid : Server::WorkerPids()) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
    std::int64_t pages = 0;
    std::int64_t resident = 0;
    if (file >> pages >> resident) {
      sum += resident * ::sysconf(_SC_PAGESIZE);
    }
  }
  return sum;
}

/// A process that has said goodbye takes a moment to be gone.
bool FallsBelow(std::int64_t bytes) {
  for (int i = 0; i < 500 && Resident() >= bytes; ++i) {
    ::poll(nullptr, 0, 10);
  }
  return Resident() < bytes;
}

ServerOptions Options(const spec::ParallelSpec& parallel) {
  ServerOptions options;
  options.parallel = parallel;
  options.enable_sleep_mode = true;
  options.kv_cache_bytes = 64 << 20;
  return options;
}

std::vector<std::vector<std::int32_t>> TokensOf(const std::vector<Answer>& answers) {
  std::vector<std::vector<std::int32_t>> tokens;
  for (const Answer& answer : answers) {
    EXPECT_EQ(answer.finish, leader::FinishReason::kLength) << answer.error;
    tokens.push_back(answer.tokens);
  }
  return tokens;
}

class SleepTest : public testing::TestWithParam<spec::ParallelSpec> {};

TEST_P(SleepTest, BothLevelsGiveMemoryBackAndWakeToTheSameTokens) {
  Server server(Options(GetParam()));
  ASSERT_NE(server.leader(), nullptr);
  const auto prompts = RandomPrompts(400, kVocab, 100, 21);
  const auto expected = TokensOf(server.Generate(prompts, 8));
  const auto workers = Server::WorkerPids();
  for (const int level : {1, 2}) {
    const std::int64_t before = Resident();
    ASSERT_TRUE(server.leader()->Sleep(level, leader::SleepMode::kAbort).ok());
    EXPECT_EQ(server.leader()->phase(), leader::Phase::kAsleep);
    EXPECT_EQ(server.leader()->sleep_level(), level);
    EXPECT_TRUE(FallsBelow(before - (1 << 20))) << "level " << level;
    leader::GenerateRequest request;
    request.prompt = prompts[0];
    request.max_tokens = 1;
    const Result<> refused = server.leader()->Submit(std::move(request), nullptr);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), Code::kUnavailable);
    EXPECT_TRUE(server.leader()->Sleep(level, leader::SleepMode::kAbort).ok()) << "once more";
    const Result<> woken = server.leader()->WakeUp();
    ASSERT_TRUE(woken.ok()) << woken.error().message();
    EXPECT_EQ(server.leader()->phase(), leader::Phase::kReady);
    EXPECT_EQ(server.leader()->sleep_level(), 0);
    EXPECT_EQ(Server::WorkerPids() == workers, level == 1) << "level 1 keeps the processes";
    EXPECT_EQ(TokensOf(server.Generate(prompts, 8)), expected);
  }
  EXPECT_TRUE(server.leader()->WakeUp().ok()) << "it is awake";
  for (const leader::ReplicaStats& stats : server.leader()->stats()) {
    EXPECT_EQ(stats.restarts, 0U) << "sleeping is no fault";
  }
}

TEST_P(SleepTest, WhatRunsEndsOrIsWaitedForOrGoesOn) {
  Server server(Options(GetParam()));
  ASSERT_NE(server.leader(), nullptr);
  const auto prompts = RandomPrompts(8, kVocab, 30, 22);
  const auto expected = TokensOf(server.Generate(prompts, kTokens));
  for (const auto mode :
       {leader::SleepMode::kAbort, leader::SleepMode::kWait, leader::SleepMode::kKeep}) {
    std::vector<std::uint32_t> slots;
    for (const auto& prompt : prompts) {
      slots.push_back(server.Submit(prompt, kTokens));
    }
    server.collector().WaitForTokens(slots[0], 3);
    ASSERT_TRUE(server.leader()->Sleep(1, mode).ok());
    if (mode == leader::SleepMode::kKeep) {
      ASSERT_TRUE(server.leader()->WakeUp().ok());
    }
    int failed = 0;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const Answer answer = server.collector().Wait(slots[i]);
      failed += answer.finish == leader::FinishReason::kError ? 1 : 0;
      if (mode != leader::SleepMode::kAbort) {
        EXPECT_EQ(answer.tokens, expected[i]) << answer.error;
      }
    }
    EXPECT_EQ(failed > 0, mode == leader::SleepMode::kAbort);
    ASSERT_TRUE(server.leader()->WakeUp().ok());
  }
  EXPECT_EQ(server.PagesInUseWhenIdle(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    SleepTest,
    testing::Values(Parallel(1, 1, 1), Parallel(2, 1, 1, 2), Parallel(1, 2, 1)),
    [](const auto& layout) {
      return "tp" + std::to_string(layout.param.tp) + "_pp" + std::to_string(layout.param.pp) +
             "_dp" + std::to_string(layout.param.dp);
    });

TEST(Sleep, IsThereOnlyWhenItIsEnabled) {
  Server server(ServerOptions{});
  ASSERT_NE(server.leader(), nullptr);
  const Result<> slept = server.leader()->Sleep(1, leader::SleepMode::kAbort);
  ASSERT_FALSE(slept.ok());
  EXPECT_EQ(slept.error().code(), Code::kNotFound);
  EXPECT_EQ(server.leader()->phase(), leader::Phase::kReady);
}

TEST(Sleep, WakingCallsOffASleepThatWaits) {
  Server server(Options(Parallel(1, 1, 1)));
  ASSERT_NE(server.leader(), nullptr);
  const auto prompt = RandomPrompts(1, kVocab, 30, 24)[0];
  const std::uint32_t slot = server.Submit(prompt, 4'000);
  server.collector().WaitForTokens(slot, 3);
  Result<> slept;
  std::thread sleeping([&] { slept = server.leader()->Sleep(1, leader::SleepMode::kWait); });
  while (server.leader()->phase() != leader::Phase::kAsleep) {
    ::poll(nullptr, 0, 1);
  }
  EXPECT_EQ(server.leader()->sleep_level(), 0);
  EXPECT_TRUE(server.leader()->WakeUp().ok());
  sleeping.join();
  ASSERT_FALSE(slept.ok());
  EXPECT_EQ(slept.error().code(), Code::kFailedPrecondition) << slept.error().message();
  EXPECT_EQ(server.leader()->phase(), leader::Phase::kReady);
  EXPECT_EQ(TokensOf(server.Generate({prompt}, 8))[0].size(), 8U) << "the door is open";
  EXPECT_EQ(server.collector().Wait(slot).finish, leader::FinishReason::kLength);
}

TEST(Sleep, AWorkerKilledAsleepIsReplacedAtWaking) {
  Server server(Options(Parallel(2, 1, 1)));
  ASSERT_NE(server.leader(), nullptr);
  const auto prompts = RandomPrompts(4, kVocab, 30, 23);
  const auto expected = TokensOf(server.Generate(prompts, kTokens));
  ASSERT_TRUE(server.leader()->Sleep(1, leader::SleepMode::kAbort).ok());
  ASSERT_EQ(::kill(Server::WorkerPids().front(), SIGKILL), 0);
  ASSERT_TRUE(server.leader()->WakeUp().ok());
  EXPECT_EQ(TokensOf(server.Generate(prompts, kTokens)), expected);
}

}  // namespace
}  // namespace inferd::cluster
