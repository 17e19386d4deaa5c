// SPDX-License-Identifier: Apache-2.0
// Turns among tenants and users: by hand, and on random schedules against what fairness promises.
#include "engine/fair_queue.h"

#include "unit/engine/scheduler_fixture.h"

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <tuple>

namespace inferd::engine {
namespace {

/// A queue of sequences that have nothing but a name; one is served at a time.
class FairQueueTest : public testing::Test {
 protected:
  struct Who {
    std::int32_t priority = 0;
    std::string tenant = {};
    std::string user = {};
    std::int32_t weight = 1;
  };

  Sequence* Arrive(const Who& who, std::int64_t cost) {
    Sequence& sequence = sequences_.emplace_back();
    sequence.order = static_cast<std::int64_t>(sequences_.size());
    sequence.request.priority = who.priority;
    sequence.request.tenant = who.tenant;
    sequence.request.user = who.user;
    sequence.request.weight = who.weight;
    queue_.Arrive(&sequence, cost);
    queue_.Push(&sequence);
    return &sequence;
  }

  Sequence* Begin() {
    Sequence* sequence = queue_.First();
    if (sequence != nullptr) {
      queue_.Serve(sequence);
      sequence->planned_once = true;
    }
    return sequence;
  }

  void End(Sequence* sequence, std::int64_t served) { queue_.Leave(sequence, served); }

  /// Begins and ends the next one, which takes what it was charged.
  Sequence* ServeNext() {
    Sequence* sequence = Begin();
    if (sequence != nullptr) {
      End(sequence, sequence->cost);
    }
    return sequence;
  }

  std::deque<Sequence> sequences_;
  FairQueue queue_;
};

TEST_F(FairQueueTest, OneUserIsServedInOrderOfArrival) {
  std::vector<Sequence*> arrived;
  for (const std::int64_t cost : {5, 1000, 1, 0, 7}) {
    arrived.push_back(Arrive({}, cost));
  }
  for (Sequence* sequence : arrived) {
    EXPECT_EQ(ServeNext(), sequence);
  }
  EXPECT_EQ(queue_.First(), nullptr);
  EXPECT_EQ(queue_.num_users(), 0U);
}

TEST_F(FairQueueTest, ANewcomerPassesTheQueueOfABusyUser) {
  for (int i = 0; i < 100; ++i) {
    Arrive({.user = "busy"}, 10);
  }
  Begin();
  Begin();
  Sequence* newcomer = Arrive({.user = "new"}, 10);
  Sequence* first = Begin();
  Sequence* second = Begin();
  EXPECT_TRUE(first == newcomer || second == newcomer);
}

TEST_F(FairQueueTest, ManyUsersOfATenantShareHisPart) {
  std::map<std::string, int> served;
  for (int i = 0; i < 50; ++i) {
    Arrive({.tenant = "crowd", .user = "u" + std::to_string(i)}, 10);
    Arrive({.tenant = "lone"}, 10);
  }
  for (int i = 0; i < 40; ++i) {
    ++served[ServeNext()->request.tenant];
  }
  EXPECT_EQ(served["crowd"], 20);
  EXPECT_EQ(served["lone"], 20);
}

TEST_F(FairQueueTest, TurnsAreAsTheWeights) {
  std::map<std::string, int> served;
  for (int i = 0; i < 400; ++i) {
    Arrive({.tenant = "big", .weight = 7}, 10);
    Arrive({.tenant = "small", .weight = 3}, 10);
  }
  for (int i = 0; i < 400; ++i) {
    ++served[ServeNext()->request.tenant];
  }
  EXPECT_NEAR(served["big"], 280, 2);
}

TEST_F(FairQueueTest, WhatWasServedCountsNotWhatWasAskedFor) {
  std::map<std::string, std::int64_t> tokens;
  for (int i = 0; i < 1000; ++i) {
    Arrive({.tenant = "asks for much"}, 500);
    Arrive({.tenant = "asks for little"}, 50);
  }
  for (int i = 0; i < 400; ++i) {
    Sequence* sequence = Begin();
    End(sequence, 50);
    tokens[sequence->request.tenant] += 50;
  }
  EXPECT_NEAR(static_cast<double>(tokens["asks for much"]), 10'000, 600);
}

TEST_F(FairQueueTest, WhoLeavesForAMomentKeepsHisDebt) {
  const Who small{.tenant = "small", .weight = 1};
  for (int i = 0; i < 100; ++i) {
    Arrive({.tenant = "big", .weight = 10}, 10);
  }
  int served = 0;
  Arrive(small, 10);
  for (int i = 0; i < 66; ++i) {
    if (ServeNext()->request.tenant == "small") {
      ++served;
      Arrive(small, 10);  // as soon as its last one has ended
    }
  }
  EXPECT_NEAR(served, 6, 1);
}

TEST_F(FairQueueTest, PrioritiesComeFirstAndHaveTimesOfTheirOwn) {
  Sequence* low = Arrive({.priority = 5, .tenant = "a"}, 10);
  for (int i = 0; i < 100; ++i) {
    Arrive({.tenant = "b"}, 1000);
  }
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(ServeNext()->request.tenant, "b");
  }
  EXPECT_EQ(queue_.First(), low);
  // What b did at another priority is no debt here.
  Arrive({.priority = 5, .tenant = "b"}, 10);
  EXPECT_EQ(ServeNext(), low);
  EXPECT_EQ(ServeNext()->request.tenant, "b");
}

TEST_F(FairQueueTest, OneThatHadARowGoesBeforeNewOnes) {
  Arrive({.tenant = "a"}, 10);
  Sequence* had_row = Begin();
  Arrive({.tenant = "b"}, 1);
  queue_.Push(had_row);
  EXPECT_EQ(ServeNext(), had_row);
}

TEST_F(FairQueueTest, WhatWasCancelledUnservedIsNoDebt) {
  Arrive({.user = "other"}, 10);
  std::vector<Sequence*> cancelled;
  for (int i = 0; i < 50; ++i) {
    cancelled.push_back(Arrive({.user = "a"}, 1000));
  }
  for (Sequence* sequence : cancelled) {
    queue_.Remove(sequence);
    End(sequence, 0);
  }
  Arrive({.user = "other"}, 10);
  Sequence* kept = Arrive({.user = "a"}, 10);
  ServeNext();
  EXPECT_EQ(ServeNext(), kept);
}

TEST_F(FairQueueTest, InventedUsersAreForgotten) {
  Arrive({.user = "stays"}, 10);
  Begin();
  for (int i = 0; i < 20'000; ++i) {
    Arrive({.user = "u" + std::to_string(i)}, 10);
    ServeNext();
    ASSERT_LE(queue_.num_users(), 2100U);
  }
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

struct Tenant {
  std::string name;
  std::int32_t weight = 1;
  std::size_t depth = 1;  // sequences that it keeps unfinished
  std::int64_t most_prompt = 1, most_output = 1;
  std::int64_t asked_output = 1;  // max_tokens; an end token comes before
  std::set<std::uint64_t> open = {};
  std::int64_t served = 0;  // tokens of prompt and output since measuring began
};

class WeightedShares : public FairSchedulerTest {
 protected:
  /// Tops up what the tenants keep open.
  void Offer(std::mt19937_64* random) {
    for (Tenant& tenant : tenants_) {
      while (tenant.open.size() < tenant.depth) {
        SequenceRequest request;
        request.id = ++next_id_;
        request.prompt.assign(1 + (*random)() % static_cast<std::uint64_t>(tenant.most_prompt),
                              static_cast<std::int32_t>(request.id % kVocab));
        request.sampling.seed = request.id;
        request.max_tokens = tenant.asked_output;
        for (std::int32_t token = 0; token < kVocab / static_cast<std::int32_t>(tenant.most_output);
             ++token) {
          request.stop_tokens.push_back(token);  // ends after most_output tokens in the mean
        }
        request.tenant = tenant.name;
        request.weight = tenant.weight;
        prompts_[request.id] = static_cast<std::int64_t>(request.prompt.size());
        tenant.open.insert(request.id);
        Add(std::move(request));
      }
    }
  }

  /// Events to tenants: a prompt counts with its first token.
  void Count() {
    std::vector<TokenEvent> events;
    scheduler_->TakeEvents(&events);
    for (const TokenEvent& event : events) {
      Tenant& tenant = *std::ranges::find_if(
          tenants_, [&](const Tenant& one) { return one.open.contains(event.id); });
      tenant.served += (event.token >= 0 ? 1 : 0) + (event.first ? prompts_[event.id] : 0);
      if (event.finish != FinishReason::kNone) {
        tenant.open.erase(event.id);
        prompts_.erase(event.id);
      }
    }
  }

  void Run(int steps, std::mt19937_64* random) {
    for (int step = 0; step < steps; ++step) {
      Offer(random);
      if (Plan().has_value()) {
        auto& results = replica_->results(0);
        ASSERT_TRUE(scheduler_->Complete(results.front()).ok());
        results.pop_front();
      }
      Count();
    }
  }

  std::vector<Tenant> tenants_;
  std::map<std::uint64_t, std::int64_t> prompts_;
  std::uint64_t next_id_ = 0;
};

// One tenant offers ten times what the other one does, and asks for much more than it then takes;
// whatever the weights, the tokens served are as these within 5 %.
TEST_F(WeightedShares, TokensServedAreAsTheWeightsWhateverIsOffered) {
  options_.num_pages = 400;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    std::mt19937_64 random(seed);
    const auto between = [&](std::int64_t low, std::int64_t high) {
      return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
    };
    options_.max_num_seqs = static_cast<std::int32_t>(between(4, 8));
    Start();
    tenants_.clear();
    prompts_.clear();
    const auto num_tenants = static_cast<std::size_t>(between(2, 4));
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < num_tenants; ++i) {
      Tenant tenant{.name = "t" + std::to_string(i)};
      tenant.weight = static_cast<std::int32_t>(between(1, 4));
      tenant.depth = i == 0 ? 200 : 20;
      tenant.most_prompt = between(1, 20);
      tenant.most_output = between(1, 10);
      tenant.asked_output = between(10, 150);
      sum += tenant.weight;
      tenants_.push_back(tenant);
    }
    Run(1000, &random);
    std::ranges::for_each(tenants_, [](Tenant& tenant) { tenant.served = 0; });
    Run(8000, &random);
    double all = 0;
    for (const Tenant& tenant : tenants_) {
      all += static_cast<double>(tenant.served);
    }
    for (const Tenant& tenant : tenants_) {
      const double fair = all * tenant.weight / sum;
      EXPECT_NEAR(static_cast<double>(tenant.served), fair, 0.05 * fair)
          << "seed " << seed << " " << tenant.name << " weight " << tenant.weight;
    }
    if (HasFatalFailure()) {
      return;
    }
  }
}

// A tenant that asks for less than its share gets all of it, and what it leaves goes to the others.
TEST_F(WeightedShares, WhatATenantDoesNotUseGoesToTheOthers) {
  options_.num_pages = 400;
  Start();
  tenants_ = {{.name = "heavy",
               .weight = 1,
               .depth = 100,
               .most_prompt = 8,
               .most_output = 8,
               .asked_output = 40},
              {.name = "light",
               .weight = 9,
               .depth = 1,
               .most_prompt = 8,
               .most_output = 8,
               .asked_output = 40}};
  std::mt19937_64 random(7);
  Run(6000, &random);
  // One of eight rows at a time.
  EXPECT_GT(tenants_[1].served, tenants_[0].served / 10);
  EXPECT_GT(tenants_[0].served, 5 * tenants_[1].served);
}

}  // namespace
}  // namespace inferd::engine
