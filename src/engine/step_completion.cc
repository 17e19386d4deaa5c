// SPDX-License-Identifier: Apache-2.0
// From a StepResult to events: progress, tokens, ends. Results come in the order of steps within
// each group.
#include "base/check.h"
#include "base/error.h"
#include "engine/scheduler_impl.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

namespace inferd::engine {
namespace {

constexpr std::size_t kPrefetchAhead = 4;

/// Sequences lie apart in memory and each is touched once a step.
void Prefetch(const Sequence* sequence) {
  const char* bytes = reinterpret_cast<const char*>(sequence);
  for (std::size_t offset = 0; offset < offsetof(Sequence, keys); offset += 64) {
    __builtin_prefetch(bytes + offset, 1);
  }
}

}  // namespace

Result<> Scheduler::Impl::Complete(const spec::StepResult& result) {
  if (result.generation != generation_) {
    return {};
  }
  if (result.group < 0 || result.group >= options_.num_groups) {
    return Internal(
        "a step result names group {}, but there are {}", result.group, options_.num_groups);
  }
  const auto group_index = static_cast<std::size_t>(result.group);
  Group& group = *groups_[group_index];
  if (result.step != group.next_result || result.step >= next_step_) {
    return Internal("group {} answered step {}, expected {} of {} planned",
                    result.group,
                    result.step,
                    group.next_result,
                    next_step_);
  }
  StepInFlight& step =
      in_flight_[static_cast<std::size_t>(result.step - (next_step_ - num_in_flight()))];
  ++group.next_result;
  INFERD_TRY(GivePromptLogprobs(result, step.groups[group_index]));
  INFERD_TRY(GiveEmbeddings(result, step.groups[group_index]));
  INFERD_TRY(CompleteEntries(result, step.groups[group_index]));
  --step.num_left;
  while (!in_flight_.empty() && in_flight_.front().num_left == 0) {
    LearnPace(in_flight_.front());
    spare_steps_.push_back(std::move(in_flight_.front()));
    in_flight_.pop_front();
  }
  return {};
}

// A step planned ahead waits for the one before it: its own time begins when that is whole.
void Scheduler::Impl::LearnPace(const StepInFlight& step) {
  const std::int64_t now_ns = clock_.NowNs();
  pacer_.Learn(
      step.decodes, step.prompt_tokens, now_ns - std::max(step.planned_ns, last_completed_ns_));
  last_completed_ns_ = now_ns;
}

Result<> Scheduler::Impl::CompleteEntries(const spec::StepResult& result,
                                          const std::vector<Entry>& entries) {
  std::span<const spec::SampledToken> left(result.sampled);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    if (i + kPrefetchAhead < entries.size()) {
      Prefetch(entries[i + kPrefetchAhead].sequence);
    }
    std::size_t count = 0;
    if (entry.sample) {
      const auto most = std::min(left.size(), static_cast<std::size_t>(entry.num_guessed) + 1);
      while (count < most && left[count].row == entry.row) {
        ++count;
      }
      if (count == 0) {
        return Internal(
            "group {} gave no token for row {} in step {}", result.group, entry.row, result.step);
      }
    }
    --entry.sequence->outstanding;
    CompleteEntry(entry, left.first(count));
    left = left.subspan(count);
  }
  if (!left.empty()) {
    return Internal("group {} gave {} tokens too many for step {}, the first of row {}",
                    result.group,
                    left.size(),
                    result.step,
                    left.front().row);
  }
  return {};
}

void Scheduler::Impl::CompleteEntry(const Entry& entry,
                                    std::span<const spec::SampledToken> sampled) {
  Sequence* sequence = entry.sequence;
  if (sequence->state == SequenceState::kFinished) {
    stats_.dropped_tokens += static_cast<std::int64_t>(sampled.size());
    if (sequence->outstanding == 0) {
      Drained(sequence);
    }
    return;
  }
  if (entry.sample) {
    if (!sequence->planned_samples.empty()) {
      sequence->planned_samples.erase(sequence->planned_samples.begin());
    }
    if (!TakeTokens(entry, sampled)) {
      return;
    }
    AskForMask(sequence, true);
  } else {
    Advance(sequence, entry.end);
    if (sequence->num_computed == sequence->max_tokens_total) {
      Finish(sequence, FinishReason::kLength, std::nullopt);  // max_tokens is 0
      return;
    }
  }
  if (sequence->state == SequenceState::kPreempted && sequence->outstanding == 0) {
    Drained(sequence);
  }
}

// Each token says that the guess before it was right, so one more position is computed. False: the
// sequence has ended and may be gone.
bool Scheduler::Impl::TakeTokens(const Entry& entry, std::span<const spec::SampledToken> sampled) {
  Sequence* sequence = entry.sequence;
  const auto count = static_cast<std::int64_t>(sampled.size());
  if (entry.num_guessed > 0 && sequence->state == SequenceState::kDecode) {
    // Go on after the last right guess; nothing else of it is in flight.
    sequence->next_position = entry.end + count - 1;
    sequence->expected_tokens = static_cast<std::int64_t>(sequence->tokens.size()) + count;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    Advance(sequence, entry.end + i);
    stats_.accepted_tokens += i > 0 ? 1 : 0;
    if (!TakeToken(sequence, sampled[static_cast<std::size_t>(i)])) {
      stats_.dropped_tokens += count - 1 - i;
      return false;
    }
  }
  return true;
}

// Before `token` is taken: would it have been guessed?
void Scheduler::Impl::LearnFrom(Sequence* sequence, std::int32_t token) {
  draft_.clear();
  LookUp(sequence->tokens, options_.prompt_lookup, 1, &draft_);
  sequence->guess_record.Take(draft_.empty() ? -1 : draft_.front(), token);
  sequence->guesses =
      !options_.prompt_lookup.adaptive || sequence->guess_record.Pays(sequence->guesses);
}

Result<> Scheduler::Impl::GivePromptLogprobs(const spec::StepResult& result,
                                             const std::vector<Entry>& entries) {
  for (const spec::PromptLogprobs& part : result.prompt_logprobs) {
    const auto entry = std::find_if(
        entries.begin(), entries.end(), [&part](const Entry& e) { return e.row == part.row; });
    if (entry == entries.end()) {
      return Internal("group {} gave prompt logprobs for row {}, which step {} does not run",
                      result.group,
                      part.row,
                      result.step);
    }
    Sequence* sequence = entry->sequence;
    if (sequence->state == SequenceState::kFinished) {
      continue;
    }
    const std::int64_t end = part.first + static_cast<std::int64_t>(part.tokens.size());
    if (part.first < 0 || part.first > sequence->prompt_logprobs_given ||
        end > sequence->num_prompt) {
      return Internal(
          "group {} gave prompt logprobs of positions {} to {} for row {}, expected from {} to {}",
          result.group,
          part.first,
          end,
          part.row,
          sequence->prompt_logprobs_given,
          sequence->num_prompt);
    }
    const std::int64_t known =
        sequence->prompt_logprobs_given - part.first;  // given before a replay
    if (end <= sequence->prompt_logprobs_given) {
      continue;
    }
    TokenEvent& event = events_.emplace_back();
    event.id = sequence->request.id;
    event.prompt_first = sequence->prompt_logprobs_given;
    event.prompt_logprobs.assign(part.tokens.begin() + known, part.tokens.end());
    sequence->prompt_logprobs_given = end;
  }
  return {};
}

Result<> Scheduler::Impl::GiveEmbeddings(const spec::StepResult& result,
                                         const std::vector<Entry>& entries) {
  for (const spec::RowEmbedding& embedding : result.embeddings) {
    const auto entry = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) {
      return e.row == embedding.row && e.sequence->request.embed;
    });
    if (entry == entries.end()) {
      return Internal("group {} gave an embedding for row {}, of which step {} asks none",
                      result.group,
                      embedding.row,
                      result.step);
    }
    if (entry->sequence->state != SequenceState::kFinished) {
      TokenEvent& event = events_.emplace_back();
      event.id = entry->sequence->request.id;
      event.embedding = embedding.values;
    }
  }
  return {};
}

BlockName Scheduler::Impl::NameOf(const Sequence& sequence, std::size_t block) const {
  BlockName name;
  if (observer_ != nullptr) {
    name.hash = sequence.names[block].low;
    if (block > 0) {
      name.parent = sequence.names[block - 1].low;
    }
  }
  return name;
}

// Positions below `end` are computed: offers full blocks to the prefix cache and releases siblings.
void Scheduler::Impl::Advance(Sequence* sequence, std::int64_t end) {
  const bool prompt_done =
      sequence->num_computed < sequence->num_prompt && end >= sequence->num_prompt;
  sequence->num_computed = end;
  const std::int64_t page_size = options_.page_size;
  if (options_.prefix_cache && (sequence->num_committed + 1) * page_size <= end) {
    const std::string& salt = sequence->request.cache_salt;
    hasher_.Extend(sequence->tokens, salt, &sequence->keys);
    if (observer_ != nullptr) {
      names_.Extend(sequence->tokens, salt, &sequence->names);
    }
    for (; (sequence->num_committed + 1) * page_size <= end; ++sequence->num_committed) {
      const auto block = static_cast<std::size_t>(sequence->num_committed);
      const std::span<const std::int32_t> tokens(sequence->tokens);
      sequence->chain_serial = group_of(*sequence).blocks.Commit(
          sequence->pages[block],
          sequence->keys[block],
          tokens.subspan(block * static_cast<std::size_t>(page_size),
                         static_cast<std::size_t>(page_size)),
          sequence->chain_serial,
          NameOf(*sequence, block),
          salt);
    }
  }
  if (prompt_done && sequence->request.fork_key != 0) {
    ForkReady(sequence);
  }
}

bool Scheduler::Impl::EndsAt(const Sequence& sequence, std::int32_t token) const {
  const SequenceRequest& request = sequence.request;
  const auto holds = [token](const std::vector<std::int32_t>& list) {
    return std::find(list.begin(), list.end(), token) != list.end();
  };
  if (request.constrained) {
    return holds(request.stop_tokens) || holds(request.eos_tokens);
  }
  return sequence.num_output() >= request.min_tokens &&
         (holds(request.stop_tokens) || (!request.ignore_eos && holds(request.eos_tokens)));
}

// False: the sequence has ended and may be gone.
bool Scheduler::Impl::TakeToken(Sequence* sequence, const spec::SampledToken& sampled) {
  if (sampled.token < 0) {
    Finish(sequence,
           FinishReason::kError,
           Internal("numerical_error: the model gave no valid logits for output token {}",
                    sequence->num_output()));
    return false;
  }
  if (sequence->request.num_speculative_tokens > 0) {
    LearnFrom(sequence, sampled.token);
  }
  sequence->tokens.push_back(sampled.token);
  ++stats_.generation_tokens;
  TokenEvent& event = events_.emplace_back();
  event.id = sequence->request.id;
  event.token = sampled.token;
  event.logprob = sampled.logprob;
  event.rank = sampled.rank;
  if (!sampled.top.empty()) {
    event.top = sampled.top;
  }
  event.num_cached_tokens = sequence->num_cached;
  event.admitted_ns = sequence->admitted_ns;
  event.first = !sequence->answered_once;
  sequence->answered_once = true;
  if (EndsAt(*sequence, sampled.token)) {
    event.finish = FinishReason::kStop;
  } else if (static_cast<std::int64_t>(sequence->tokens.size()) == sequence->max_tokens_total) {
    event.finish = FinishReason::kLength;
  }
  if (event.finish == FinishReason::kNone) {
    return true;
  }
  MarkFinished(sequence, event.finish);
  return false;
}

}  // namespace inferd::engine
