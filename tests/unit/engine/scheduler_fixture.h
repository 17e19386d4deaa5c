// SPDX-License-Identifier: Apache-2.0
// SchedulerTest: a scheduler, a fake replica and a fake clock, driven step by step.
#pragma once

#include "base/clock.h"
#include "engine/scheduler.h"
#include "unit/engine/fake_replica.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace inferd::engine {

class SchedulerTest : public testing::Test {
 protected:
  static constexpr std::int32_t kVocab = 1000;

  SchedulerTest() {
    options_.page_size = 4;
    options_.num_pages = 64;
    options_.max_num_seqs = 8;
    options_.max_batched_tokens = 32;
    options_.max_model_len = 200;
  }

  void Start() {
    scheduler_.emplace(options_, clock_, PrefixHasher({1, 2}, options_.page_size));
    replica_.emplace(options_, kVocab);
  }

  static SequenceRequest Request(std::uint64_t id,
                                 std::size_t num_prompt,
                                 std::int64_t max_tokens) {
    SequenceRequest request;
    request.id = id;
    request.prompt.resize(num_prompt);
    std::iota(request.prompt.begin(), request.prompt.end(), static_cast<std::int32_t>(id) * 100);
    request.max_tokens = max_tokens;
    return request;
  }

  void Add(SequenceRequest request) {
    const Result<> result = scheduler_->Add(std::move(request));
    ASSERT_TRUE(result.ok()) << result.error().message();
  }

  /// Plans a step and runs it on the replica; the result waits for Complete().
  std::optional<spec::StepPlan> Plan() {
    auto plan = scheduler_->Schedule();
    if (plan.has_value()) {
      replica_->Run(*plan);
      EXPECT_EQ(replica_->problem(), "");
    }
    return plan;
  }

  void Complete(std::int32_t group = 0) {
    auto& results = replica_->results(group);
    ASSERT_FALSE(results.empty());
    const Result<> result = scheduler_->Complete(results.front());
    ASSERT_TRUE(result.ok()) << result.error().message();
    results.pop_front();
    Collect();
  }

  void Collect() {
    std::vector<TokenEvent> events;
    scheduler_->TakeEvents(&events);
    for (TokenEvent& event : events) {
      if (event.token >= 0) {
        output_[event.id].push_back(event.token);
      }
      if (event.finish != FinishReason::kNone) {
        finish_order_.push_back(event.id);
        last_.insert_or_assign(event.id, event);
      }
      if (event.first) {
        first_.insert_or_assign(event.id, event);
      }
    }
  }

  /// Until nothing is left; returns the number of steps.
  int Drain() {
    int steps = 0;
    while (scheduler_->has_unfinished() || scheduler_->num_in_flight() > 0) {
      while (Plan().has_value()) {
        ++steps;
      }
      for (std::int32_t group = 0; group < options_.num_groups; ++group) {
        Complete(group);
      }
      if (steps > 10'000 || HasFatalFailure() || !replica_->problem().empty()) {
        ADD_FAILURE() << "does not end";
        break;
      }
    }
    EXPECT_TRUE(scheduler_->Audit().ok()) << scheduler_->Audit().error().message();
    EXPECT_EQ(scheduler_->Stats().kv_pages_used, 0);
    return steps;
  }

  std::vector<std::int32_t> Expected(const SequenceRequest& request) {
    FinishReason finish = FinishReason::kNone;
    return UndisturbedOutput(request, scheduler_->max_sequence_tokens(), kVocab, &finish);
  }

  SchedulerOptions options_;
  base::FakeClock clock_;
  std::optional<Scheduler> scheduler_;
  std::optional<FakeReplica> replica_;
  std::map<std::uint64_t, std::vector<std::int32_t>> output_;
  std::map<std::uint64_t, TokenEvent> first_;
  std::map<std::uint64_t, TokenEvent> last_;
  std::vector<std::uint64_t> finish_order_;
};

}  // namespace inferd::engine
