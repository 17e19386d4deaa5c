// SPDX-License-Identifier: Apache-2.0
#include "ops/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace inferd::ops {
namespace {

TEST(ThreadTeam, RunsTheBodyOnceOnEveryThread) {
  for (const int threads : {1, 2, 3}) {
    Result<std::unique_ptr<ThreadTeam>> team = ThreadTeam::Make(threads, {});
    ASSERT_TRUE(team.ok());
    std::vector<int> calls(static_cast<std::size_t>(threads));
    for (int round = 0; round < 50; ++round) {
      (*team)->Run([&](int thread) { ++calls[static_cast<std::size_t>(thread)]; });
    }
    EXPECT_EQ(calls, std::vector<int>(static_cast<std::size_t>(threads), 50));
  }
}

// Plain memory written in one region is read in the next by other threads: the regions must order
// it.
TEST(ThreadTeam, RegionsAreOrdered) {
  Result<std::unique_ptr<ThreadTeam>> team = ThreadTeam::Make(3, {});
  ASSERT_TRUE(team.ok());
  std::vector<std::int64_t> value = {1, 2, 3};
  for (int round = 0; round < 50; ++round) {
    std::vector<std::int64_t> next(3);
    (*team)->Run([&](int thread) {
      next[static_cast<std::size_t>(thread)] =
          value[static_cast<std::size_t>((thread + 1) % 3)] + 1;
    });
    value = next;
  }
  EXPECT_EQ(std::accumulate(value.begin(), value.end(), std::int64_t{0}), 6 + 3 * 50);
}

TEST(ThreadTeam, WakesFromParking) {
  Result<std::unique_ptr<ThreadTeam>> team = ThreadTeam::Make(2, {});
  ASSERT_TRUE(team.ok());
  std::atomic<int> calls{0};
  for (int round = 0; round < 3; ++round) {
    // Long enough idle that the second thread stops spinning.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
    (*team)->Run([&](int thread) { calls += thread; });
  }
  EXPECT_EQ(calls.load(), 3);
}

TEST(ThreadTeam, PinsTheCallerToo) {
  const int cpus[] = {0};
  Result<std::unique_ptr<ThreadTeam>> team = ThreadTeam::Make(1, cpus);
  ASSERT_TRUE(team.ok());
  int calls = 0;
  std::thread owner([&] { (*team)->Run([&](int) { ++calls; }); });
  owner.join();
  EXPECT_EQ(calls, 1);
}

TEST(ThreadTeam, RefusesImpossibleSizes) {
  const int cpus[] = {0};
  EXPECT_EQ(ThreadTeam::Make(0, {}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(ThreadTeam::Make(ThreadTeam::kMaxThreads + 1, {}).error().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(ThreadTeam::Make(2, cpus).error().message(),
            "1 CPUs for 2 threads: name one CPU per thread");
}

}  // namespace
}  // namespace inferd::ops
