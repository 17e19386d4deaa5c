// SPDX-License-Identifier: Apache-2.0
// Who runs and who gives way: prefixes, siblings, pages, priorities, stages and groups.
#include "unit/engine/scheduler_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

namespace inferd::engine {
namespace {

TEST_F(SchedulerTest, SharesPrefixesButComputesTheLastToken) {
  Start();
  SequenceRequest request = Request(1, 16, 2);
  Add(request);
  Drain();
  request.id = 2;
  Add(request);
  const auto plan = Plan();
  EXPECT_EQ(plan->work[0].start, 12);  // the last full block is computed again
  EXPECT_EQ(plan->work[0].count, 4);
  EXPECT_EQ(plan->work[0].new_pages.size(), 4U);
  EXPECT_EQ(plan->fresh_pages.size(), 1U);
  Drain();
  EXPECT_EQ(first_[2].num_cached_tokens, 12);
  EXPECT_EQ(output_[1], output_[2]);
  request.id = 3;
  request.cache_salt = "other tenant";
  Add(request);
  EXPECT_EQ(Plan()->work[0].start, 0);
  Drain();
  request.id = 4;
  request.cache_salt = "";
  request.sampling.prompt_logprobs = 1;  // needs every position
  Add(request);
  EXPECT_EQ(Plan()->work[0].start, 0);
  Drain();
  EXPECT_EQ(scheduler_->Stats().prefix_hit_tokens, 12);
}

TEST_F(SchedulerTest, SiblingsWaitForTheSharedPrompt) {
  Start();
  SequenceRequest request = Request(1, 18, 3);
  request.fork_key = 7;
  for (request.id = 1; request.id <= 3; ++request.id) {
    request.sampling.seed = request.id;
    Add(request);
  }
  EXPECT_EQ(Plan()->work.size(), 1U);
  EXPECT_EQ(scheduler_->Stats().waiting, 2);
  Complete();
  const auto plan = Plan();
  ASSERT_EQ(plan->work.size(), 3U);
  EXPECT_EQ(plan->work[1].start, 16);
  EXPECT_EQ(plan->work[2].start, 16);
  EXPECT_EQ(std::vector<std::int32_t>(plan->work[1].new_pages.begin(),
                                      plan->work[1].new_pages.begin() + 4),
            std::vector<std::int32_t>(plan->work[2].new_pages.begin(),
                                      plan->work[2].new_pages.begin() + 4));
  Drain();
  for (request.id = 1; request.id <= 3; ++request.id) {
    request.sampling.seed = request.id;
    EXPECT_EQ(output_[request.id], Expected(request));
  }
}

TEST_F(SchedulerTest, ASiblingTakesOverWhenTheFirstIsCancelled) {
  Start();
  SequenceRequest request = Request(1, 18, 3);
  request.fork_key = 7;
  for (request.id = 1; request.id <= 3; ++request.id) {
    Add(request);
  }
  Plan();
  scheduler_->Cancel(1);
  const auto plan = Plan();
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->work.size(), 1U);
  Drain();
  EXPECT_EQ(last_[1].finish, FinishReason::kAbort);
  EXPECT_EQ(output_[2], output_[3]);
  EXPECT_EQ(output_[2].size(), 3U);
}

TEST_F(SchedulerTest, CancelledPagesReturnWhenTheStepRetires) {
  Start();
  Add(Request(1, 18, 30));
  Plan();
  Plan();
  scheduler_->Cancel(1);
  scheduler_->Cancel(1);
  scheduler_->Cancel(99);
  EXPECT_FALSE(scheduler_->has_unfinished());
  EXPECT_EQ(scheduler_->Stats().kv_pages_used, 5);
  Complete();
  EXPECT_EQ(scheduler_->Stats().kv_pages_used, 5);
  Complete();
  EXPECT_EQ(scheduler_->Stats().kv_pages_used, 0);
  EXPECT_EQ(last_[1].finish, FinishReason::kAbort);
  EXPECT_EQ(finish_order_.size(), 1U);
  Add(Request(2, 3, 1));
  const auto plan = Plan();
  EXPECT_TRUE(plan->close_rows.empty());  // the row is opened anew
  EXPECT_EQ(plan->open_rows[0].row, 0);
  Complete();
}

TEST_F(SchedulerTest, PreemptsTheYoungestWhenPagesRunOut) {
  options_.num_pages = 12;
  options_.prefix_cache = false;
  Start();
  for (std::uint64_t id = 1; id <= 3; ++id) {
    Add(Request(id, 8, 24));
  }
  Drain();
  EXPECT_GT(scheduler_->Stats().preemptions, 0);
  EXPECT_EQ(finish_order_, (std::vector<std::uint64_t>{1, 2, 3}));
  for (std::uint64_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(output_[id], Expected(Request(id, 8, 24)));
  }
}

// The pages of a sequence that is giving way come back with its last result; until then nobody else
// must give way.
TEST_F(SchedulerTest, OneVictimAtATime) {
  options_.num_pages = 12;
  options_.max_batched_tokens = 64;
  options_.prefix_cache = false;
  Start();
  for (std::uint64_t id = 1; id <= 4; ++id) {
    Add(Request(id, 12, 20));  // three pages each: the pool is full
  }
  Plan();
  Plan();  // the first decodes need a page each: the fourth gives way, with a step in flight
  EXPECT_EQ(scheduler_->Stats().preemptions, 1);
  EXPECT_EQ(scheduler_->Stats().running, 3);
  Complete();
  EXPECT_EQ(output_[4].size(), 1U);  // what was under way still counts
  EXPECT_EQ(scheduler_->Stats().kv_pages_free, 3);
  EXPECT_EQ(Plan()->work.size(), 3U);
  Drain();
  for (std::uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(output_[id], Expected(Request(id, 12, 20)));
  }
}

TEST_F(SchedulerTest, BetterPriorityTakesARow) {
  options_.max_num_seqs = 2;
  Start();
  for (std::uint64_t id = 1; id <= 3; ++id) {
    SequenceRequest request = Request(id, 8, 20);
    request.priority = 5;
    Add(request);
  }
  Plan();
  Plan();
  SequenceRequest urgent = Request(9, 8, 2);
  urgent.priority = -1;
  Add(urgent);
  Drain();
  EXPECT_EQ(scheduler_->Stats().preemptions, 1);
  EXPECT_EQ(finish_order_, (std::vector<std::uint64_t>{9, 1, 2, 3}));
  EXPECT_EQ(output_[2], Expected(Request(2, 8, 20)));
}

TEST_F(SchedulerTest, EqualPriorityWaitsItsTurn) {
  options_.max_num_seqs = 1;
  Start();
  for (std::uint64_t id = 1; id <= 4; ++id) {
    Add(Request(id, 8, 5));
  }
  Drain();
  EXPECT_EQ(scheduler_->Stats().preemptions, 0);
  EXPECT_EQ(finish_order_, (std::vector<std::uint64_t>{1, 2, 3, 4}));
}

TEST_F(SchedulerTest, StagesGetBalancedMicroBatches) {
  options_.num_stages = 2;
  options_.max_in_flight = 3;
  Start();
  for (std::uint64_t id = 1; id <= 8; ++id) {
    Add(Request(id, 2, 40));
  }
  Plan();  // prefill of all
  for (int i = 0; i < 3; ++i) {
    while (Plan().has_value()) {
    }
    Complete();
  }
  std::map<std::int32_t, std::int64_t> last_step;
  for (int i = 0; i < 12; ++i) {
    const auto plan = Plan();
    ASSERT_TRUE(plan.has_value());
    EXPECT_EQ(plan->work.size(), 4U);
    for (const auto& work : plan->work) {
      EXPECT_EQ(work.input_step, plan->step - 2);
    }
    Complete();
  }
  Drain();
}

TEST_F(SchedulerTest, ASingleSequenceQueuesBehindItselfInAPipeline) {
  options_.num_stages = 2;
  options_.max_in_flight = 3;
  Start();
  Add(Request(1, 2, 10));
  Plan();
  EXPECT_EQ(Plan()->work[0].input_step, 0);
  EXPECT_EQ(Plan()->work[0].input_step, 1);
  EXPECT_FALSE(Plan().has_value());
  Drain();
  EXPECT_EQ(output_[1], Expected(Request(1, 2, 10)));
}

TEST_F(SchedulerTest, GroupsShareTheLoadAndKeepPrefixes) {
  options_.num_groups = 2;
  Start();
  Add(Request(1, 12, 4));
  Add(Request(2, 12, 4));
  const auto plan = Plan();
  ASSERT_EQ(plan->work.size(), 2U);
  EXPECT_NE(plan->work[0].group, plan->work[1].group);
  Complete(1);
  EXPECT_EQ(scheduler_->num_in_flight(), 1);  // the other group's result is missing
  Complete(0);
  EXPECT_EQ(scheduler_->num_in_flight(), 0);
  Drain();
  SequenceRequest again = Request(2, 12, 4);
  again.id = 3;
  Add(again);
  const auto hit = Plan();
  EXPECT_EQ(hit->work[0].start, 8);
  EXPECT_EQ(hit->work[0].group, plan->work[1].group);
  Drain();
}

// A KV pool of 30 % of the demand: all outputs right, and nobody waits much longer than in a queue
// of single runs.
TEST_F(SchedulerTest, APreemptionStormStarvesNobody) {
  options_.num_pages = 24;
  options_.max_num_seqs = 8;
  Start();
  for (std::uint64_t id = 1; id <= 40; ++id) {
    Add(Request(id, 10, 30));
  }
  const int steps = Drain();
  EXPECT_GT(scheduler_->Stats().preemptions, 5);
  EXPECT_LT(steps, 40 * 31);  // one after the other
  for (std::uint64_t id = 1; id <= 40; ++id) {
    EXPECT_EQ(output_[id], Expected(Request(id, 10, 30)));
    const auto place =
        std::find(finish_order_.begin(), finish_order_.end(), id) - finish_order_.begin();
    EXPECT_LE(std::abs(place - static_cast<std::ptrdiff_t>(id - 1)), 8) << id;
  }
}

}  // namespace
}  // namespace inferd::engine
