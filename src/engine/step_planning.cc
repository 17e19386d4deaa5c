// SPDX-License-Identifier: Apache-2.0
// From rows to a StepPlan: decodes first, then prefill chunks of running sequences, then newcomers.
#include "base/check.h"
#include "engine/scheduler_impl.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace inferd::engine {
namespace {

constexpr std::int64_t kWholePages = 4;

}  // namespace

std::optional<spec::StepPlan> Scheduler::Impl::Schedule() {
  ExpireDeadlines();
  if (num_in_flight() >= options_.max_in_flight || num_unfinished_ == 0) {
    return std::nullopt;
  }
  spec::StepPlan plan;
  plan.generation = generation_;
  plan.step = next_step_;
  std::size_t num_running = 0;
  for (const auto& group : groups_) {
    num_running += group->running.size();
  }
  plan.work.reserve(num_running + 1);
  PlanWork(&plan);
  // Rows that planning itself took away are free from the next attempt on. With nothing in flight
  // there is no result to wait for, so a plan must come out.
  const auto has_released = [](const auto& group) { return !group->released_rows.empty(); };
  while (plan.work.empty() && in_flight_.empty() &&
         std::any_of(groups_.begin(), groups_.end(), has_released)) {
    PlanWork(&plan);
  }
  if (plan.work.empty() && options_.num_stages > 1 && !in_flight_.empty()) {
    // Nothing is independent of the steps in flight: queue behind them rather than wait for their
    // results.
    for (auto& group : groups_) {
      group->budget = options_.max_batched_tokens;
      PlanDecodes(group.get(), true, &plan);
    }
  }
  if (plan.work.empty()) {
    return std::nullopt;
  }
  CloseRows(&plan);
  current_.num_left = options_.num_groups;
  current_.planned_ns = clock_.NowNs();
  in_flight_.push_back(std::move(current_));
  current_ = StepInFlight{};
  if (!spare_steps_.empty()) {
    current_ = std::move(spare_steps_.back());
    spare_steps_.pop_back();
  }
  ++next_step_;
  ++stats_.steps;
  return plan;
}

void Scheduler::Impl::PlanWork(spec::StepPlan* plan) {
  BeginStep();
  for (auto& group : groups_) {
    PlanDecodes(group.get(), false, plan);
  }
  Admit();
  for (auto& group : groups_) {
    ShareOutPrefill(group.get());
    PlanPrefills(group.get(), plan);
  }
}

void Scheduler::Impl::BeginStep() {
  current_.groups.resize(groups_.size());
  for (auto& entries : current_.groups) {
    entries.clear();
  }
  for (auto& group : groups_) {
    for (const std::int32_t row : group->released_rows) {
      group->free_rows.push_back(row);
      group->rows_to_close.push_back(row);
    }
    group->released_rows.clear();
    group->chunks.clear();
    group->budget = options_.max_batched_tokens;
    group->has_decodes = false;
  }
  current_.decodes = 0;
  current_.prompt_tokens = 0;
}

// Leaves a quarter of the step to prefill when there is any, so that neither starves the other;
// with several stages, an equal share of the decodes for each micro-batch.
std::int64_t Scheduler::Impl::DecodeLimit(const Group& group) const {
  std::int64_t limit = group.budget;
  if (!group.prefilling.empty() || (!waiting_.empty() && !admission_blocked_)) {
    limit -= std::max<std::int64_t>(1, limit / 4);
  }
  if (options_.num_stages > 1) {
    const auto num_decoding =
        static_cast<std::int64_t>(group.running.size() - group.prefilling.size());
    limit = std::min(limit, (num_decoding + options_.num_stages - 1) / options_.num_stages);
  }
  return limit;
}

// `allow_dependent`: also rows whose last step is fewer than num_stages steps back and still in
// flight.
void Scheduler::Impl::PlanDecodes(Group* group, bool allow_dependent, spec::StepPlan* plan) {
  const std::int64_t newest_allowed =
      allow_dependent ? next_step_ : next_step_ - options_.num_stages;
  candidates_.clear();
  const std::size_t num_running = group->running.size();
  const std::size_t cursor = group->decode_cursor < num_running ? group->decode_cursor : 0;
  for (std::size_t i = 0; i < num_running; ++i) {
    Sequence* sequence =
        group->running[cursor + i < num_running ? cursor + i : cursor + i - num_running];
    if (sequence->state == SequenceState::kDecode &&
        sequence->expected_tokens < sequence->max_tokens_total &&
        (sequence->outstanding == 0 ||
         (!sequence->guesses && sequence->last_step <= newest_allowed))) {
      candidates_.push_back(sequence);
    }
  }
  group->decode_cursor = 0;
  std::int64_t left = DecodeLimit(*group);
  std::int64_t guesses_left =
      options_.max_speculative_rows - static_cast<std::int64_t>(candidates_.size());
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    Sequence* sequence = candidates_[i];
    if (sequence->state != SequenceState::kDecode) {
      continue;  // preempted for one before it
    }
    if (left == 0) {
      const auto place =
          std::lower_bound(group->running.begin(), group->running.end(), sequence, RunsBefore());
      group->decode_cursor = static_cast<std::size_t>(place - group->running.begin());
      break;
    }
    if (sequence->next_position < sequence->page_capacity || ReserveForDecode(sequence)) {
      draft_.clear();
      if (sequence->guesses) {
        Guess(sequence, std::min(left - 1, guesses_left));
      }
      EmitDecode(sequence, plan);
      const auto num_guessed = static_cast<std::int64_t>(draft_.size());
      guesses_left -= num_guessed;
      left -= 1 + num_guessed;
      group->budget -= 1 + num_guessed;
      group->has_decodes = true;
    }
  }
  current_.decodes = std::max(current_.decodes, options_.max_batched_tokens - group->budget);
}

// Gets one more page, if need be from the sequence that runs last of all; false: not in this step.
bool Scheduler::Impl::ReserveForDecode(Sequence* sequence) {
  Group& group = group_of(*sequence);
  while (!group.blocks.Allocate(1, 0, &sequence->pages)) {
    if (group.draining_pages > 0) {
      return false;  // pages come back when the steps in flight complete
    }
    Sequence* victim = group.running.back();
    Preempt(victim);
    if (victim == sequence) {
      return false;
    }
  }
  sequence->page_capacity += options_.page_size;
  return true;
}

// Into draft_: at most `most` tokens, as far as pages can be had without taking them from others.
void Scheduler::Impl::Guess(Sequence* sequence, std::int64_t most) {
  most = std::min({most,
                   static_cast<std::int64_t>(sequence->request.num_speculative_tokens),
                   sequence->max_tokens_total - sequence->expected_tokens - 1});
  LookUp(sequence->tokens, options_.prompt_lookup, most, &draft_);
  const auto end = [&] {
    return sequence->next_position + 1 + static_cast<std::int64_t>(draft_.size());
  };
  while (!draft_.empty() && end() > sequence->page_capacity) {
    if (group_of(*sequence).blocks.Allocate(1, 0, &sequence->pages)) {
      sequence->page_capacity += options_.page_size;
    } else {
      draft_.resize(draft_.size() - static_cast<std::size_t>(end() - sequence->page_capacity));
    }
  }
}

// The next token of a sequence, and those of draft_.
void Scheduler::Impl::EmitDecode(Sequence* sequence, spec::StepPlan* plan) {
  const auto num_guessed = static_cast<std::int32_t>(draft_.size());
  spec::RowWork& work = EmitWork(sequence, 1 + num_guessed, true, plan);
  if (num_guessed == 0) {
    return;
  }
  work.draft = draft_;
  Entry& entry = current_.groups[static_cast<std::size_t>(sequence->group)].back();
  entry.end -= num_guessed;
  entry.num_guessed = num_guessed;
  sequence->expected_tokens += num_guessed;
  ++stats_.drafts;
  stats_.draft_tokens += num_guessed;
}

// With several contenders none takes more than half at first, so that short prompts pass a long one
// while the first in order always advances. What is left then goes to the first.
void Scheduler::Impl::ShareOutPrefill(Group* group) {
  if (group->has_decodes) {
    group->budget = std::min(group->budget, pacer_.MostPromptTokens());
  }
  const std::int64_t half = std::max<std::int64_t>(options_.page_size, group->budget / 2);
  const std::int64_t most = group->prefilling.size() > 1 ? half : group->budget;
  for (Sequence* sequence : group->prefilling) {
    const std::int64_t left =
        static_cast<std::int64_t>(sequence->tokens.size()) - sequence->next_position;
    const std::int64_t count = std::min({left, most, group->budget});
    if (count == 0) {
      break;
    }
    group->chunks.push_back({sequence, count});
    group->budget -= count;
  }
  for (Chunk& chunk : group->chunks) {
    const std::int64_t left = static_cast<std::int64_t>(chunk.sequence->tokens.size()) -
                              chunk.sequence->next_position - chunk.count;
    const std::int64_t more = std::min(left, group->budget);
    if (more > 0) {
      chunk.count += more;
      group->budget -= more;
    }
  }
}

void Scheduler::Impl::PlanPrefills(Group* group, spec::StepPlan* plan) {
  std::int64_t planned = 0;
  for (const Chunk& chunk : group->chunks) {
    Sequence* sequence = chunk.sequence;
    const auto num_tokens = static_cast<std::int64_t>(sequence->tokens.size());
    std::int64_t end = sequence->next_position + chunk.count;
    if (end < num_tokens && chunk.count >= kWholePages * options_.page_size) {
      // Chunks of some length end on page borders: whole pages for the kernels.
      const std::int64_t aligned = end - end % options_.page_size;
      end = aligned > sequence->next_position ? aligned : end;
    }
    const bool last = end == num_tokens;
    const std::int64_t count = end - sequence->next_position;
    EmitWork(sequence, count, last && num_tokens < sequence->max_tokens_total, plan);
    group->prefill_backlog -= count;
    planned += count;
    if (last) {
      sequence->state = SequenceState::kDecode;
      group->prefilling.erase(std::lower_bound(
          group->prefilling.begin(), group->prefilling.end(), sequence, RunsBefore()));
    }
  }
  current_.prompt_tokens = std::max(current_.prompt_tokens, planned);
}

spec::RowWork& Scheduler::Impl::EmitWork(Sequence* sequence,
                                         std::int64_t count,
                                         bool sample,
                                         spec::StepPlan* plan) {
  spec::RowWork& work = plan->work.emplace_back();
  work.row = sequence->row;
  work.group = sequence->group;
  work.start = sequence->next_position;
  work.count = static_cast<std::int32_t>(count);
  work.sample = sample;
  work.reset_pages = !sequence->row_opened;
  if (sequence->state == SequenceState::kDecode) {
    work.input_step = sequence->sample_step;
  }
  if (!sequence->row_opened) {
    OpenRow(sequence, plan);
  }
  const std::int64_t end = sequence->next_position + count;
  if (end > sequence->num_pages_sent * options_.page_size) {
    const std::int64_t num_pages = PagesOf(end);
    for (std::int64_t i = sequence->num_pages_sent; i < num_pages; ++i) {
      const std::int32_t page = sequence->pages[static_cast<std::size_t>(i)];
      work.new_pages.push_back(page);
      if (i >= sequence->num_hit_pages) {
        plan->fresh_pages.emplace_back(sequence->group, page);
      }
    }
    sequence->num_pages_sent = num_pages;
  }
  stats_.prompt_tokens +=
      std::max<std::int64_t>(0, std::min(end, sequence->num_prompt) - sequence->next_position);
  work.embed = sequence->request.embed && end == sequence->num_prompt;
  sequence->next_position = end;
  sequence->last_step = next_step_;
  ++sequence->outstanding;
  if (sample) {
    sequence->sample_step = next_step_;
    ++sequence->expected_tokens;
    if (sequence->request.constrained) {
      sequence->planned_samples.push_back({next_step_, sequence->row, false});
      if (sequence->planned_samples.size() == 1) {
        AskForMask(sequence, true);
      }
    }
  }
  current_.groups[static_cast<std::size_t>(sequence->group)].push_back(
      {.sequence = sequence, .row = sequence->row, .sample = sample, .end = end});
  return work;
}

void Scheduler::Impl::OpenRow(Sequence* sequence, spec::StepPlan* plan) {
  spec::OpenRow& open = plan->open_rows.emplace_back();
  open.row = sequence->row;
  open.group = sequence->group;
  open.tokens = sequence->tokens;
  open.num_prompt_tokens = static_cast<std::int32_t>(sequence->num_prompt);
  open.sampling = sequence->request.sampling;
  if (!sequence->wants_prompt_logprobs()) {
    open.sampling.prompt_logprobs = -1;  // all given before a replay
  }
  const SequenceRequest& request = sequence->request;
  open.constrained = request.constrained;
  if (request.min_tokens > sequence->num_output()) {
    open.sampling.min_tokens = request.min_tokens;
    open.sampling.end_tokens = request.stop_tokens;
    if (!request.ignore_eos) {
      open.sampling.end_tokens.insert(
          open.sampling.end_tokens.end(), request.eos_tokens.begin(), request.eos_tokens.end());
    }
  }
  sequence->row_opened = true;
  group_of(*sequence).row_open[static_cast<std::size_t>(sequence->row)] = true;
}

// Rows that were given up before this plan and are not opened by it.
void Scheduler::Impl::CloseRows(spec::StepPlan* plan) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    Group& group = *groups_[i];
    for (const std::int32_t row : group.rows_to_close) {
      const auto index = static_cast<std::size_t>(row);
      if (group.row_open[index] && !group.row_used[index]) {
        group.row_open[index] = false;
        plan->close_rows.emplace_back(static_cast<std::int32_t>(i), row);
      }
    }
    group.rows_to_close.clear();
  }
}

}  // namespace inferd::engine
