// SPDX-License-Identifier: Apache-2.0
// FakeReplica: executes step plans on simulated KV pages. Every position's KV depends on all
// positions before it, read through the row's page table, so a wrong, stale or shared page changes
// the output; and every breach of the plan contract is recorded as a problem.
#pragma once

#include "engine/scheduler.h"
#include "spec/step.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace inferd::engine {

inline std::uint64_t Mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t z = a * 0x9e3779b97f4a7c15ULL + b + 0x632be59bd9b4e019ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return (z ^ (z >> 31)) | 1;  // never 0, which means "not written"
}

/// KV of a position from its token and the KV before it.
inline std::uint64_t KvOf(std::int32_t token, std::int64_t position, std::uint64_t before) {
  return Mix(Mix(static_cast<std::uint64_t>(token), static_cast<std::uint64_t>(position)), before);
}

/// The model's next token after a context whose KV adds up to `sum`; -1 stands for NaN.
inline std::int32_t NextToken(std::uint64_t sum, std::uint64_t seed, std::int32_t vocab) {
  return static_cast<std::int32_t>(Mix(sum, seed) % static_cast<std::uint64_t>(vocab));
}

inline float PromptLogprobOf(std::uint64_t sum, std::int32_t token) {
  return -static_cast<float>(Mix(sum, static_cast<std::uint64_t>(token)) % 1000);
}

/// What a sequence gives when nothing disturbs it.
inline std::vector<std::int32_t> UndisturbedOutput(const SequenceRequest& request,
                                                   std::int64_t max_sequence_tokens,
                                                   std::int32_t vocab,
                                                   FinishReason* finish) {
  std::vector<std::int32_t> tokens = request.prompt;
  std::vector<std::int32_t> output;
  std::uint64_t sum = 0;
  std::size_t position = 0;
  *finish = FinishReason::kLength;
  const auto holds = [](const std::vector<std::int32_t>& list, std::int32_t token) {
    return std::find(list.begin(), list.end(), token) != list.end();
  };
  while (static_cast<std::int64_t>(output.size()) < request.max_tokens &&
         static_cast<std::int64_t>(tokens.size()) < max_sequence_tokens) {
    for (; position < tokens.size(); ++position) {
      sum += KvOf(tokens[position], static_cast<std::int64_t>(position), sum);
    }
    const std::int32_t token = NextToken(sum, request.sampling.seed, vocab);
    tokens.push_back(token);
    output.push_back(token);
    const bool ignore_eos = request.ignore_eos && !request.constrained;
    const std::int64_t min_tokens = request.constrained ? 0 : request.min_tokens;
    const bool ends =
        holds(request.stop_tokens, token) || (!ignore_eos && holds(request.eos_tokens, token));
    if (ends && static_cast<std::int64_t>(output.size()) >= min_tokens) {
      *finish = FinishReason::kStop;
      break;
    }
  }
  return output;
}

class FakeReplica {
 public:
  FakeReplica(const SchedulerOptions& options, std::int32_t vocab)
      : options_(options), vocab_(vocab) {
    Restart(0);
  }

  /// New workers: no rows, garbage in the pages, nothing in flight.
  void Restart(std::uint64_t generation) {
    generation_ = generation;
    next_step_ = 0;
    const auto num_slots = static_cast<std::size_t>(options_.num_pages * options_.page_size);
    groups_.assign(static_cast<std::size_t>(options_.num_groups), {});
    for (GroupState& group : groups_) {
      group.kv.assign(num_slots, 0xdeadULL);
      group.rows.resize(static_cast<std::size_t>(options_.max_num_seqs));
    }
  }

  /// Executes a plan at once; the results wait in results(group).
  void Run(const spec::StepPlan& plan) {
    if (plan.generation != generation_ || plan.step != next_step_) {
      Problem(fmt::format(
          "got step {}.{}, expected {}.{}", plan.generation, plan.step, generation_, next_step_));
      return;
    }
    ++next_step_;
    std::set<std::pair<std::int32_t, std::int32_t>> closed;
    for (const auto& [group, row] : plan.close_rows) {
      if (!RowOf(group, row).open) {
        Problem(fmt::format("row {} closed but not open", row));
      }
      RowOf(group, row) = {};
      closed.emplace(group, row);
    }
    for (const spec::OpenRow& open : plan.open_rows) {
      if (closed.contains({open.group, open.row})) {
        Problem(fmt::format("row {} closed and opened by one plan", open.row));
      }
      Row& row = RowOf(open.group, open.row);
      row = {};
      row.open = true;
      row.tokens = open.tokens;
      row.num_prompt = open.num_prompt_tokens;
      row.sampling = open.sampling;
    }
    for (const auto& [group, page] : plan.fresh_pages) {
      for (std::int64_t i = 0; i < options_.page_size; ++i) {
        Slot(group, page, i) = 0;
      }
    }
    std::vector<spec::StepResult> results(groups_.size());
    std::vector<std::int64_t> num_tokens(groups_.size(), 0);
    std::set<std::pair<std::int32_t, std::int32_t>> worked;
    for (const spec::RowWork& work : plan.work) {
      if (!worked.emplace(work.group, work.row).second) {
        Problem(fmt::format("row {} twice in step {}", work.row, plan.step));
      }
      num_tokens[static_cast<std::size_t>(work.group)] += work.count;
      RunRow(work, plan.step, &results[static_cast<std::size_t>(work.group)]);
    }
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      if (num_tokens[i] > options_.max_batched_tokens) {
        Problem(fmt::format("{} tokens in step {}, budget {}",
                            num_tokens[i],
                            plan.step,
                            options_.max_batched_tokens));
      }
      results[i].generation = plan.generation;
      results[i].step = plan.step;
      results[i].group = static_cast<std::int32_t>(i);
      groups_[i].results.push_back(std::move(results[i]));
    }
  }

  std::deque<spec::StepResult>& results(std::int32_t group) {
    return groups_[static_cast<std::size_t>(group)].results;
  }
  const std::string& problem() const { return problem_; }
  /// Sequences with this seed get NaN logits.
  void set_nan_seed(std::uint64_t seed) { nan_seed_ = seed; }

 private:
  struct Row {
    bool open = false;
    std::vector<std::int32_t> tokens;
    std::int32_t num_prompt = 0;
    spec::SamplingParams sampling;
    std::vector<std::int32_t> pages;
    bool pages_set = false;
    std::int64_t sample_step = -1;
    std::int64_t drafted_end = 0;  // positions below may hold what followed a wrong guess
  };

  struct GroupState {
    std::vector<std::uint64_t> kv;  // [pages, page_size]
    std::vector<Row> rows;
    std::deque<spec::StepResult> results;
  };

  void Problem(std::string text) {
    if (problem_.empty()) {
      problem_ = std::move(text);
    }
  }

  Row& RowOf(std::int32_t group, std::int32_t row) {
    return groups_.at(static_cast<std::size_t>(group)).rows.at(static_cast<std::size_t>(row));
  }

  std::uint64_t& Slot(std::int32_t group, std::int32_t page, std::int64_t offset) {
    return groups_.at(static_cast<std::size_t>(group))
        .kv.at(static_cast<std::size_t>(page * options_.page_size + offset));
  }

  std::uint64_t& SlotOf(std::int32_t group, const Row& row, std::int64_t position) {
    return Slot(group,
                row.pages.at(static_cast<std::size_t>(position / options_.page_size)),
                position % options_.page_size);
  }

  void TakePages(const spec::RowWork& work, Row* row) {
    if (work.reset_pages) {
      row->pages.clear();
      row->pages_set = true;
    } else if (!row->pages_set) {
      Problem(fmt::format("row {} runs before its pages are set", work.row));
    }
    row->pages.insert(row->pages.end(), work.new_pages.begin(), work.new_pages.end());
    const std::int64_t end = work.start + work.count;
    const std::int64_t needed =
        (std::max(end, row->drafted_end) + options_.page_size - 1) / options_.page_size;
    if (static_cast<std::int64_t>(row->pages.size()) != needed) {
      Problem(
          fmt::format("row {} has {} pages for {} positions", work.row, row->pages.size(), end));
    }
  }

  void RunRow(const spec::RowWork& work, std::int64_t step, spec::StepResult* result) {
    Row& row = RowOf(work.group, work.row);
    const std::size_t num_known = row.tokens.size();
    row.tokens.insert(row.tokens.end(), work.draft.begin(), work.draft.end());
    const auto num_tokens = static_cast<std::int64_t>(row.tokens.size());
    const std::int64_t end = work.start + work.count;
    if (!row.open || work.count < 1 || end > num_tokens || (work.sample && end != num_tokens)) {
      Problem(fmt::format(
          "row {}: open {}, run {} to {} of {}", work.row, row.open, work.start, end, num_tokens));
      return;
    }
    if (work.input_step != row.sample_step) {
      Problem(fmt::format(
          "row {}: input step {}, sampled in {}", work.row, work.input_step, row.sample_step));
    }
    TakePages(work, &row);
    if (!problem_.empty()) {
      return;
    }
    std::uint64_t sum = 0;
    for (std::int64_t i = 0; i < work.start; ++i) {
      const std::uint64_t kv = SlotOf(work.group, row, i);
      if (kv == 0) {
        Problem(fmt::format("row {} reads position {}, which is not written", work.row, i));
      }
      sum += kv;
    }
    spec::PromptLogprobs logprobs{work.row, work.group, work.start + 1, {}};
    for (std::int64_t i = work.start; i < end; ++i) {
      std::uint64_t& slot = SlotOf(work.group, row, i);
      if (slot != 0 && i >= row.drafted_end) {
        Problem(fmt::format("row {} writes position {} to a page that is not fresh", work.row, i));
      }
      slot = KvOf(row.tokens[static_cast<std::size_t>(i)], i, sum);
      sum += slot;
      if (row.sampling.prompt_logprobs >= 0 && i + 1 < row.num_prompt) {
        spec::SampledToken& token = logprobs.tokens.emplace_back();
        token.token = row.tokens[static_cast<std::size_t>(i + 1)];
        token.logprob = PromptLogprobOf(sum, token.token);
      }
    }
    if (!logprobs.tokens.empty()) {
      result->prompt_logprobs.push_back(std::move(logprobs));
    }
    row.drafted_end = work.draft.empty() ? row.drafted_end : std::max(row.drafted_end, end);
    row.tokens.resize(num_known);
    if (work.sample) {
      row.sample_step = step;
      Sample(work, sum, &row, result);
    }
  }

  /// Goes on from token to token as long as each is the next guess.
  void Sample(const spec::RowWork& work, std::uint64_t sum, Row* row, spec::StepResult* result) {
    // `sum` is that of all positions run: go back to before the guesses.
    const auto num_guessed = static_cast<std::int64_t>(work.draft.size());
    const std::int64_t first_guessed = work.start + work.count - num_guessed;
    for (std::int64_t i = 0; i < num_guessed; ++i) {
      sum -= SlotOf(work.group, *row, first_guessed + i);
    }
    for (std::int64_t i = 0; i <= num_guessed; ++i) {
      spec::SampledToken& sampled = result->sampled.emplace_back();
      sampled.row = work.row, sampled.group = work.group;
      sampled.token = NextToken(sum, row->sampling.seed, vocab_);
      row->tokens.push_back(sampled.token);
      if (nan_seed_ == row->sampling.seed) {
        sampled.token = -1;
      }
      if (i == num_guessed || work.draft[static_cast<std::size_t>(i)] != sampled.token) {
        return;
      }
      sum += SlotOf(work.group, *row, first_guessed + i);
    }
  }

  SchedulerOptions options_;
  std::int32_t vocab_;
  std::uint64_t generation_ = 0;
  std::int64_t next_step_ = 0;
  std::optional<std::uint64_t> nan_seed_;
  std::vector<GroupState> groups_;
  std::string problem_;
};

}  // namespace inferd::engine
