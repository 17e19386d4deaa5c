// SPDX-License-Identifier: Apache-2.0
// One sequence through the scheduler, and how a step is shared out. Random cases:
// scheduler_simulation_test.cc.
#include "unit/engine/scheduler_fixture.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace inferd::engine {
namespace {

TEST_F(SchedulerTest, RefusesWhatCanNeverRun) {
  options_.num_pages = 10;  // 40 tokens
  options_.max_waiting = 2;
  Start();
  const auto code = [&](SequenceRequest request) {
    const Result<> result = scheduler_->Add(std::move(request));
    return result.ok() ? 0 : static_cast<int>(result.error().code());
  };
  EXPECT_EQ(code(Request(1, 0, 1)), static_cast<int>(Code::kInvalidArgument));
  EXPECT_EQ(code(Request(1, 200, 1)), static_cast<int>(Code::kInvalidArgument));
  EXPECT_EQ(code(Request(1, 3, -1)), static_cast<int>(Code::kInvalidArgument));
  const Result<> pool = scheduler_->Add(Request(1, 40, 1));
  ASSERT_FALSE(pool.ok());
  EXPECT_EQ(pool.error().message(),
            "the prompt has 40 tokens, but the KV cache holds 40 tokens; shorten the prompt");
  EXPECT_EQ(code(Request(1, 39, 1)), 0);
  EXPECT_EQ(code(Request(1, 3, 1)), static_cast<int>(Code::kAlreadyExists));
  EXPECT_EQ(code(Request(2, 3, 1)), 0);
  EXPECT_EQ(code(Request(3, 3, 1)), static_cast<int>(Code::kResourceExhausted));
  Drain();
  EXPECT_EQ(code(Request(3, 3, 1)), 0);
  Drain();
}

TEST_F(SchedulerTest, PlansOneStepAhead) {
  Start();
  const SequenceRequest request = Request(1, 5, 3);
  Add(request);
  const auto first = Plan();
  ASSERT_TRUE(first.has_value());
  ASSERT_EQ(first->open_rows.size(), 1U);
  EXPECT_EQ(first->open_rows[0].tokens, request.prompt);
  EXPECT_EQ(first->fresh_pages.size(), 2U);
  ASSERT_EQ(first->work.size(), 1U);
  EXPECT_EQ(first->work[0].count, 5);
  EXPECT_TRUE(first->work[0].sample);
  EXPECT_TRUE(first->work[0].reset_pages);
  EXPECT_EQ(first->work[0].input_step, -1);
  const auto second = Plan();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->work[0].start, 5);
  EXPECT_EQ(second->work[0].input_step, 0);
  EXPECT_TRUE(second->work[0].new_pages.empty());
  EXPECT_FALSE(Plan().has_value());  // two in flight
  Complete();
  EXPECT_TRUE(first_[1].first);
  const auto third = Plan();
  ASSERT_TRUE(third.has_value());
  EXPECT_EQ(third->work[0].input_step, 1);
  Complete();
  EXPECT_FALSE(Plan().has_value());  // the third token is on its way, no fourth is wanted
  Complete();
  EXPECT_EQ(output_[1], Expected(request));
  EXPECT_EQ(last_[1].finish, FinishReason::kLength);
  EXPECT_EQ(scheduler_->Stats().dropped_tokens, 0);
}

TEST_F(SchedulerTest, DropsTheTokenSampledAfterTheEnd) {
  Start();
  SequenceRequest request = Request(1, 5, 50);
  request.eos_tokens = {Expected(request)[3]};
  Add(request);
  Drain();
  EXPECT_EQ(output_[1].size(), 4U);
  EXPECT_EQ(last_[1].finish, FinishReason::kStop);
  EXPECT_EQ(last_[1].token, request.eos_tokens[0]);
  EXPECT_EQ(scheduler_->Stats().dropped_tokens, 1);
  EXPECT_EQ(scheduler_->Stats().generation_tokens, 4);
}

TEST_F(SchedulerTest, EndTokensObeyMinTokensAndIgnoreEos) {
  Start();
  SequenceRequest request = Request(1, 5, 10);
  const auto tokens = Expected(request);
  request.eos_tokens = {tokens[1], tokens[4]};
  request.min_tokens = 3;
  Add(request);
  request.id = 2;
  request.ignore_eos = true;
  Add(request);
  request.id = 3;
  request.stop_tokens = {tokens[6]};
  Add(request);
  Drain();
  EXPECT_EQ(output_[1].size(), 5U);
  EXPECT_EQ(output_[2].size(), 10U);
  EXPECT_EQ(output_[3].size(), 7U);
  EXPECT_EQ(last_[3].finish, FinishReason::kStop);
}

TEST_F(SchedulerTest, MaxTokensZeroRunsThePromptOnly) {
  Start();
  SequenceRequest request = Request(1, 9, 0);
  request.sampling.prompt_logprobs = 0;
  Add(request);
  EXPECT_FALSE(Plan()->work[0].sample);
  EXPECT_FALSE(Plan().has_value());
  auto& results = replica_->results(0);
  ASSERT_TRUE(scheduler_->Complete(results.front()).ok());
  results.pop_front();
  std::vector<TokenEvent> events;
  scheduler_->TakeEvents(&events);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].prompt_logprobs.size(), 8U);
  EXPECT_EQ(events[0].prompt_first, 1);
  EXPECT_EQ(events[1].finish, FinishReason::kLength);
  EXPECT_EQ(events[1].token, -1);
}

TEST_F(SchedulerTest, ChunksALongPromptBesideDecodes) {
  options_.max_in_flight = 1;
  Start();
  Add(Request(1, 4, 100));
  Plan();
  Complete();
  Add(Request(2, 90, 5));
  std::vector<std::int32_t> chunks;
  for (int i = 0; i < 4; ++i) {
    const auto plan = Plan();
    ASSERT_EQ(plan->work.size(), 2U) << "the decode runs in every step";
    EXPECT_EQ(plan->work[0].count, 1);
    chunks.push_back(plan->work[1].count);
    EXPECT_EQ(plan->work[1].sample, i == 3);
    Complete();
  }
  EXPECT_EQ(chunks, (std::vector<std::int32_t>{28, 28, 28, 6}));  // whole pages within 31
  scheduler_->Cancel(1);
  Drain();
}

TEST_F(SchedulerTest, APromptTakesNoMoreOfAStepThanTheTimeBetweenTokensAllows) {
  options_.max_in_flight = 1;
  options_.target_itl_ns = 13'000'000;
  Start();
  Add(Request(1, 32, 8));
  EXPECT_EQ(Plan()->work[0].count, 32);  // alone: the whole budget
  clock_.AdvanceMs(32);
  Complete();
  EXPECT_EQ(Plan()->work.size(), 1U);
  clock_.AdvanceMs(5);
  Complete();
  Add(Request(2, 31, 5));
  EXPECT_EQ(Plan()->work[1].count, 8);  // 5 ms for the decode, 1 ms a token
  clock_.AdvanceMs(13);
  Complete();
  Drain();
}

TEST_F(SchedulerTest, AStepPlannedAheadIsNotTimedWhileItWaits) {
  options_.max_in_flight = 2;
  options_.target_itl_ns = 13'000'000;
  Start();
  Add(Request(1, 32, 9));
  Plan();
  Plan();
  clock_.AdvanceMs(32);
  Complete();
  clock_.AdvanceMs(5);
  Complete();  // a decode of 5 ms, planned 37 ms ago
  Add(Request(2, 31, 5));
  EXPECT_EQ(Plan()->work[1].count, 8);
  clock_.AdvanceMs(13);
  Complete();
  Drain();
}

TEST_F(SchedulerTest, AShortPromptPassesALongOne) {
  options_.max_in_flight = 1;
  Start();
  Add(Request(1, 150, 1));
  Add(Request(2, 6, 1));
  const auto plan = Plan();
  ASSERT_EQ(plan->work.size(), 2U);
  EXPECT_EQ(plan->work[1].count, 6);
  EXPECT_EQ(plan->work[0].count, 24);  // all the rest in whole pages
  Complete();
  EXPECT_EQ(finish_order_, (std::vector<std::uint64_t>{2}));
  Drain();
}

TEST_F(SchedulerTest, ManyDecodesLeaveRoomForPrefillAndTakeTurns) {
  options_.max_in_flight = 1;
  options_.max_batched_tokens = 8;
  options_.max_num_seqs = 12;
  Start();
  for (std::uint64_t id = 1; id <= 8; ++id) {
    Add(Request(id, 1, 20));
  }
  Plan();
  Complete();
  Add(Request(9, 40, 1));
  std::map<std::int32_t, int> turns;
  for (int step = 0; step < 8; ++step) {
    const auto plan = Plan();
    int decodes = 0;
    for (const auto& work : plan->work) {
      decodes += work.start > 0 && work.input_step >= 0 ? 1 : 0;
      turns[work.row] += 1;
    }
    EXPECT_EQ(decodes, 6);
    EXPECT_EQ(plan->work.back().count, 2);
    Complete();
  }
  for (std::int32_t row = 0; row < 8; ++row) {
    EXPECT_EQ(turns[row], 6) << "row " << row;  // 48 turns over 8 rows
  }
  Drain();
}

TEST_F(SchedulerTest, ClosesRowsThatEnd) {
  Start();
  Add(Request(1, 3, 1));
  Add(Request(2, 3, 9));
  Plan();
  Complete();
  const auto plan = Plan();
  EXPECT_EQ(plan->close_rows, (std::vector<std::pair<std::int32_t, std::int32_t>>{{0, 0}}));
  Drain();
}

TEST_F(SchedulerTest, DeadlinesEndQueuedAndRunningSequences) {
  options_.max_num_seqs = 1;
  Start();
  SequenceRequest running = Request(1, 4, 100);
  running.queue_deadline_ns = 50;
  running.deadline_ns = 1000;
  Add(running);
  SequenceRequest queued = Request(2, 4, 5);
  queued.queue_deadline_ns = 100;
  Add(queued);
  Plan();
  clock_.AdvanceNs(100);
  Plan();
  Collect();
  ASSERT_TRUE(last_.contains(2));
  EXPECT_EQ(last_[2].finish, FinishReason::kError);
  EXPECT_EQ(last_[2].error->code(), Code::kDeadlineExceeded);
  EXPECT_FALSE(last_.contains(1));  // it was planned in time
  clock_.AdvanceNs(900);
  scheduler_->ExpireDeadlines();
  Collect();
  EXPECT_EQ(last_[1].error->code(), Code::kDeadlineExceeded);
  Complete();
  Complete();
  EXPECT_EQ(scheduler_->Stats().kv_pages_used, 0);
}

TEST_F(SchedulerTest, AFailedRowEndsOnlyItsSequence) {
  Start();
  replica_->set_nan_seed(13);
  SequenceRequest bad = Request(1, 4, 5);
  bad.sampling.seed = 13;
  Add(bad);
  Add(Request(2, 4, 5));
  Drain();
  EXPECT_EQ(last_[1].finish, FinishReason::kError);
  EXPECT_EQ(last_[1].error->code(), Code::kInternal);
  EXPECT_EQ(output_[2], Expected(Request(2, 4, 5)));
}

TEST_F(SchedulerTest, ResetReplaysInOrder) {
  Start();
  for (std::uint64_t id = 1; id <= 3; ++id) {
    Add(Request(id, 6, 12));
  }
  for (int i = 0; i < 4; ++i) {
    Plan();
    Complete();
  }
  Plan();  // its result is lost
  scheduler_->Reset(5);
  replica_->Restart(5);
  EXPECT_EQ(scheduler_->num_in_flight(), 0);
  EXPECT_EQ(scheduler_->Stats().kv_pages_used, 0);
  const auto plan = Plan();
  EXPECT_EQ(plan->step, 0);
  EXPECT_EQ(plan->generation, 5U);
  ASSERT_EQ(plan->open_rows.size(), 3U);
  EXPECT_EQ(plan->open_rows[0].tokens.size(), 10U);
  EXPECT_EQ(plan->open_rows[0].num_prompt_tokens, 6);
  Drain();
  EXPECT_EQ(finish_order_, (std::vector<std::uint64_t>{1, 2, 3}));
  for (std::uint64_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(output_[id], Expected(Request(id, 6, 12)));
  }
}

TEST_F(SchedulerTest, ResultsThatContradictThePlanAreErrors) {
  Start();
  Add(Request(1, 4, 5));
  Plan();
  spec::StepResult good = replica_->results(0).front();
  spec::StepResult bad = good;
  bad.group = 3;
  EXPECT_FALSE(scheduler_->Complete(bad).ok());
  bad = good;
  bad.step = 1;
  EXPECT_FALSE(scheduler_->Complete(bad).ok());
  bad = good;
  bad.generation = 9;
  EXPECT_TRUE(scheduler_->Complete(bad).ok());  // of another life: dropped
  EXPECT_EQ(scheduler_->num_in_flight(), 1);
  bad = good;
  bad.sampled[0].row = 3;
  EXPECT_FALSE(scheduler_->Complete(bad).ok());
  scheduler_->Reset(1);
  replica_->Restart(1);
  Plan();
  bad = replica_->results(0).front();
  bad.sampled.clear();
  EXPECT_FALSE(scheduler_->Complete(bad).ok());
  scheduler_->Reset(2);
  replica_->Restart(2);
  Drain();
  EXPECT_EQ(output_[1], Expected(Request(1, 4, 5)));
}

}  // namespace
}  // namespace inferd::engine
