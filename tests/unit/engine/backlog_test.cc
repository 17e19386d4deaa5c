// SPDX-License-Identifier: Apache-2.0
#include "engine/backlog.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <random>

namespace inferd::engine {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

WaitingWork Work(std::string share, std::int64_t cost, std::int32_t weight = 1, int priority = 0) {
  return {.priority = priority,
          .share = std::move(share),
          .weight = weight,
          .prompt_tokens = cost / 2,
          .cost = cost};
}

/// Counts `count` begun in a row, `ns` apart, so that the rate is known.
std::int64_t Warm(Backlog* backlog, int count, std::int64_t cost, std::int64_t ns) {
  std::int64_t now = 0;
  const auto stays = backlog->Arrive(Work("warm", 0), now);
  for (int i = 0; i < count; ++i) {
    const auto place = backlog->Arrive(Work("warm", cost), now);
    now += ns;
    backlog->Begin(place, now);
  }
  backlog->Leave(stays, now);
  return now;
}

TEST(BacklogTest, NothingIsPredictedBeforeTheRateIsKnown) {
  Backlog backlog;
  backlog.Arrive(Work("a", 1000), 0);
  EXPECT_EQ(backlog.WaitNs(Work("a", 1000), kSecond), 0);
  EXPECT_FALSE(backlog.NsUntilLeft(1, 0).has_value());
}

TEST(BacklogTest, TheWaitIsTheWorkAheadOverTheRate) {
  Backlog backlog;
  const std::int64_t now = Warm(&backlog, 200, 100, kSecond / 10);  // 1000 tokens a second
  EXPECT_EQ(backlog.WaitNs(Work("a", 100), now), 0) << "nobody waits";
  for (int i = 0; i < 50; ++i) {
    backlog.Arrive(Work("a", 100), now);
  }
  EXPECT_EQ(backlog.sequences(), 50);
  EXPECT_EQ(backlog.prompt_tokens(), 2500);
  EXPECT_NEAR(backlog.WaitNs(Work("a", 100), now) * 1e-9, 5, 0.1);
  EXPECT_NEAR(backlog.NsUntilLeft(10, 0).value() * 1e-9, 1, 0.02);
  EXPECT_NEAR(backlog.NsUntilLeft(1, 1000).value() * 1e-9, 2, 0.04);
  // When nothing leaves, the wait grows.
  EXPECT_GT(backlog.WaitNs(Work("a", 100), now + 10 * kSecond) * 1e-9, 7);
}

TEST(BacklogTest, OthersCountAsFarAsTheyPass) {
  Backlog backlog;
  const std::int64_t now = Warm(&backlog, 200, 100, kSecond / 10);
  for (int i = 0; i < 50; ++i) {
    backlog.Arrive(Work("busy", 100), now);
  }
  EXPECT_NEAR(backlog.WaitNs(Work("quiet", 100), now) * 1e-9, 0.1, 0.01);
  EXPECT_NEAR(backlog.WaitNs(Work("quiet", 100, 10), now) * 1e-9, 0.01, 0.001);
  EXPECT_NEAR(backlog.WaitNs(Work("quiet", 100, 1, 1), now) * 1e-9, 5, 0.1)
      << "all of better priority is ahead";
  EXPECT_EQ(backlog.WaitNs(Work("quiet", 100, 1, -1), now), 0);
}

TEST(BacklogTest, WhatLeavesUnservedIsNoRate) {
  Backlog backlog;
  std::int64_t now = Warm(&backlog, 200, 100, kSecond / 10);
  std::vector<Backlog::Place> places;
  for (int i = 0; i < 20; ++i) {
    places.push_back(backlog.Arrive(Work("a", 100), now));
  }
  for (const auto& place : places) {
    backlog.Leave(place, now);
  }
  EXPECT_EQ(backlog.sequences(), 0);
  EXPECT_EQ(backlog.prompt_tokens(), 0);
  backlog.Arrive(Work("a", 100), now);
  EXPECT_NEAR(backlog.WaitNs(Work("a", 100), now) * 1e-9, 0.1, 0.01);
}

TEST(BacklogTest, ThoseRefusedComeBackOneAfterTheOther) {
  Backlog backlog;
  const std::int64_t now = Warm(&backlog, 200, 100, kSecond / 10);  // 1000 tokens a second
  EXPECT_EQ(backlog.AppointNs(Work("a", 100), kSecond, now), kSecond);
  EXPECT_NEAR(backlog.AppointNs(Work("a", 200), kSecond, now) * 1e-9, 1.1, 0.01);
  EXPECT_NEAR(backlog.AppointNs(Work("a", 100), kSecond, now) * 1e-9, 1.3, 0.01);
  // Another tenant's impatience is not its own.
  EXPECT_EQ(backlog.AppointNs(Work("b", 100), kSecond, now), kSecond);
  // Later there is nobody before it.
  EXPECT_EQ(backlog.AppointNs(Work("a", 100), kSecond, now + 10 * kSecond), kSecond);
}

// A recovery lasts minutes in which nothing begins: the rate fades, and waits stay numbers.
TEST(BacklogTest, WaitsStayFiniteWhileNothingBegins) {
  Backlog backlog;
  std::int64_t now = Warm(&backlog, 200, 100, kSecond / 10);
  std::int64_t last = 0;
  for (int second = 0; second < 1000; ++second, now += kSecond) {
    backlog.Arrive(Work("a", 100), now);
    const std::int64_t wait = backlog.WaitNs(Work("a", 100), now);
    EXPECT_GE(wait, last);
    EXPECT_LE(wait, 3600 * kSecond);
    last = wait;
  }
  EXPECT_EQ(last, 3600 * kSecond);
  const auto left = backlog.NsUntilLeft(1000, 100'000);
  EXPECT_TRUE(!left || (*left > 0 && *left <= 3600 * kSecond));
}

// A queue with one server of known speed: what is predicted is what happens.
TEST(BacklogTest, PredictionsComeTrueInAQueue) {
  std::mt19937_64 random(3);
  Backlog backlog;
  struct Waiting {
    Backlog::Place place;
    std::int64_t predicted_ns = 0;
    std::int64_t arrived_ns = 0;
  };
  std::deque<Waiting> queue;
  std::int64_t now = 0;
  double error = 0;
  double wait = 0;
  for (int i = 0; i < 5000; ++i) {
    while (queue.size() < 20) {
      const auto cost = static_cast<std::int64_t>(50 + random() % 100);
      const std::int64_t predicted = backlog.WaitNs(Work("a", cost), now);
      queue.push_back({backlog.Arrive(Work("a", cost), now), predicted, now});
    }
    const Waiting& first = queue.front();
    now += first.place.cost * 1'000'000;  // 1000 tokens a second
    backlog.Begin(first.place, now);
    if (i > 200) {
      const auto really = static_cast<double>(now - first.arrived_ns);
      error += std::abs(really - static_cast<double>(first.predicted_ns));
      wait += really;
    }
    queue.pop_front();
  }
  EXPECT_LT(error / wait, 0.15);
}

}  // namespace
}  // namespace inferd::engine
