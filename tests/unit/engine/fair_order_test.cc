// SPDX-License-Identifier: Apache-2.0
// Turns among tenants and users: by hand, and on random schedules against what fairness promises.
#include "engine/fair_order.h"

#include "unit/engine/scheduler_fixture.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <tuple>

namespace inferd::engine {
namespace {

TEST(FairOrderTest, OneUserIsServedInOrderOfArrival) {
  FairOrder order;
  std::int64_t before = 0;
  for (const std::int64_t cost : {5, 1000, 1, 0, 7}) {
    const std::int64_t turn = order.Arrive(0, "", "", cost);
    EXPECT_GT(turn, before);
    before = turn;
  }
}

TEST(FairOrderTest, ANewcomerPassesTheQueueOfABusyUserButNotWhatIsServed) {
  FairOrder order;
  std::vector<std::int64_t> busy;
  for (int i = 0; i < 100; ++i) {
    busy.push_back(order.Arrive(0, "", "busy", 10));
  }
  order.Served(0, busy[0]);
  order.Served(0, busy[1]);
  const std::int64_t turn = order.Arrive(0, "", "new", 10);
  EXPECT_GT(turn, busy[1]);
  EXPECT_LE(turn, busy[2]);
}

TEST(FairOrderTest, ManyUsersOfATenantShareHisPart) {
  FairOrder order;
  std::vector<std::int64_t> crowd;
  for (int i = 0; i < 50; ++i) {
    crowd.push_back(order.Arrive(0, "crowd", "u" + std::to_string(i), 10));
  }
  std::vector<std::int64_t> lone;
  for (int i = 0; i < 10; ++i) {
    lone.push_back(order.Arrive(0, "lone", "", 10));
  }
  // In any stretch of turns the crowd gets about as many as the lone one.
  const auto first = static_cast<std::ptrdiff_t>(
      std::ranges::count_if(crowd, [&](std::int64_t turn) { return turn <= lone.back(); }));
  EXPECT_GE(first, 8);
  EXPECT_LE(first, 12);
}

TEST(FairOrderTest, PrioritiesHaveClocksOfTheirOwn) {
  FairOrder order;
  const std::int64_t low = order.Arrive(5, "", "a", 10);
  for (int i = 0; i < 100; ++i) {
    order.Served(0, order.Arrive(0, "", "b", 1000));
  }
  EXPECT_EQ(order.Arrive(5, "", "c", 10), low) << "what others did at another priority is no debt";
}

TEST(FairOrderTest, ItForgetsThoseWhoHaveLeft) {
  FairOrder order;
  const std::int64_t first = order.Arrive(0, "t", "a", 1'000'000);
  order.Arrive(0, "t", "b", 1);
  order.Leave(0, "t", "a", 1'000'000);  // cancelled, never served: no debt
  EXPECT_LT(order.Arrive(0, "t", "a", 10), first);
  order.Leave(0, "t", "a", 0);
  order.Leave(0, "t", "b", 0);
  EXPECT_TRUE(order.empty());
}

TEST(FairOrderTest, WhatWasCancelledUnservedIsNoDebt) {
  FairOrder order;
  const std::int64_t kept = order.Arrive(0, "", "a", 10);
  for (int i = 0; i < 50; ++i) {
    order.Arrive(0, "", "a", 1000);
  }
  for (int i = 0; i < 50; ++i) {
    order.Leave(0, "", "a", 1000);
  }
  EXPECT_EQ(order.Arrive(0, "", "a", 10), kept + 10);
}

class FairSchedulerTest : public SchedulerTest {};

TEST_F(FairSchedulerTest, AShortQueueIsNotHeldUpByALongOne) {
  options_.max_num_seqs = 2;
  Start();
  for (std::uint64_t id = 1; id <= 40; ++id) {
    SequenceRequest request = Request(id, 6, 6);
    request.user = "busy";
    Add(std::move(request));
  }
  Plan();
  Complete();
  for (std::uint64_t id = 101; id <= 103; ++id) {
    SequenceRequest request = Request(id, 6, 6);
    request.prompt.assign(6, static_cast<std::int32_t>(id));
    request.user = "quiet";
    Add(std::move(request));
  }
  Drain();
  for (std::uint64_t id = 101; id <= 103; ++id) {
    const auto place = std::ranges::find(finish_order_, id) - finish_order_.begin();
    // Two run already; then busy and quiet take turns.
    EXPECT_LE(place, 2 + 2 * static_cast<std::ptrdiff_t>(id - 100)) << id;
  }
}

struct Arrival {
  std::uint64_t id = 0;
  int user = 0;
  int at_step = 0;
  std::size_t num_prompt = 0;
  std::int64_t max_tokens = 0;
};

/// Ids in the order in which they end, and the step of each end.
using Ends = std::vector<std::pair<std::uint64_t, int>>;

class RandomFairness : public FairSchedulerTest {
 protected:
  Ends Serve(const std::vector<Arrival>& arrivals, std::int32_t num_rows) {
    options_.max_num_seqs = num_rows;
    options_.num_pages = 200;
    Start();
    finish_order_.clear();
    Ends ends;
    std::size_t next = 0;
    for (int step = 0; step < 100'000; ++step) {
      for (; next < arrivals.size() && arrivals[next].at_step <= step; ++next) {
        const Arrival& arrival = arrivals[next];
        SequenceRequest request;
        request.id = arrival.id;
        request.prompt.assign(arrival.num_prompt, static_cast<std::int32_t>(arrival.id % kVocab));
        request.max_tokens = arrival.max_tokens;
        request.user = "u" + std::to_string(arrival.user);
        Add(std::move(request));
      }
      if (Plan().has_value()) {
        Complete();
      }
      while (ends.size() < finish_order_.size()) {
        ends.emplace_back(finish_order_[ends.size()], step);
      }
      if (next == arrivals.size() && !scheduler_->has_unfinished()) {
        break;
      }
    }
    return ends;
  }
};

// Users who send few requests wait for their own work and for a fair share of the others', however
// much these send; and the same arrivals give the same schedule.
TEST_F(RandomFairness, NobodyStarvesAndEqualArrivalsGiveEqualSchedules) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    const auto between = [&](int low, int high) {
      return low + static_cast<int>(random() % static_cast<std::uint64_t>(high - low + 1));
    };
    const int num_users = between(2, 5);
    std::vector<Arrival> arrivals;
    std::uint64_t id = 0;
    for (int user = 0; user < num_users; ++user) {
      const int count = user == 0 ? between(60, 120) : between(1, 6);
      for (int i = 0; i < count; ++i) {
        arrivals.push_back({.id = ++id,
                            .user = user,
                            .at_step = user == 0 ? between(0, 3) : between(0, 60),
                            .num_prompt = static_cast<std::size_t>(between(1, 12)),
                            .max_tokens = between(1, 12)});
      }
    }
    std::ranges::stable_sort(arrivals, {}, &Arrival::at_step);
    const auto num_rows = static_cast<std::int32_t>(between(1, 4));
    const Ends ends = Serve(arrivals, num_rows);
    ASSERT_EQ(ends.size(), arrivals.size()) << "seed " << seed;
    ASSERT_EQ(Serve(arrivals, num_rows), ends) << "seed " << seed;

    std::map<std::uint64_t, int> end_step(ends.begin(), ends.end());
    for (const Arrival& arrival : arrivals) {
      if (arrival.user == 0) {
        continue;
      }
      // Before it ends, at most: what runs, its own user's work, and as much of every other user's
      // (each may round up by one request of 24 tokens).
      std::int64_t own = 0;
      for (const Arrival& other : arrivals) {
        if (other.user == arrival.user && other.at_step <= arrival.at_step) {
          own += static_cast<std::int64_t>(other.num_prompt) + other.max_tokens;
        }
      }
      const std::int64_t most = num_rows * 24 + (own + 24) * num_users;
      EXPECT_LE(end_step.at(arrival.id) - arrival.at_step, most)
          << "seed " << seed << " id " << arrival.id;
    }
  }
}

}  // namespace
}  // namespace inferd::engine
