// SPDX-License-Identifier: Apache-2.0
#include "engine/scheduler.h"

#include "base/check.h"
#include "base/error.h"
#include "engine/scheduler_impl.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace inferd::engine {
namespace {

constexpr std::int64_t kMaxReservedOutput = 1024;

}  // namespace

Scheduler::Impl::Group::Group(const SchedulerOptions& options)
    : blocks(options.num_pages, options.page_size),
      row_used(static_cast<std::size_t>(options.max_num_seqs), false),
      row_open(static_cast<std::size_t>(options.max_num_seqs), false) {
  for (std::int32_t row = options.max_num_seqs; row-- > 0;) {
    free_rows.push_back(row);
  }
}

Scheduler::Impl::Impl(const SchedulerOptions& options,
                      const base::Clock& clock,
                      const PrefixHasher& hasher)
    : options_(options),
      clock_(clock),
      hasher_(hasher),
      names_(PrefixHasher::Stable(options.page_size)),
      pacer_({options.target_itl_ns, options.num_stages, options.page_size}) {
  INFERD_CHECK(options.num_groups > 0 && options.num_stages > 0 && options.max_in_flight > 0);
  INFERD_CHECK(options.page_size > 0 && options.num_pages > 0 && options.max_num_seqs > 0);
  INFERD_CHECK(options.max_batched_tokens >= 2 && options.max_model_len > 0 &&
               options.max_waiting > 0);
  INFERD_CHECK(hasher.page_size() == options.page_size);
  for (std::int32_t i = 0; i < options.num_groups; ++i) {
    groups_.push_back(std::make_unique<Group>(options));
  }
}

void Scheduler::Impl::Observe(BlockObserver* observer) {
  observer_ = observer;
  for (auto& group : groups_) {
    group->blocks.Observe(observer);
  }
}

std::int64_t Scheduler::Impl::max_sequence_tokens() const {
  return std::min(options_.max_model_len, options_.num_pages * options_.page_size);
}

Result<> Scheduler::Impl::Validate(const SequenceRequest& request) const {
  const auto num_prompt = static_cast<std::int64_t>(request.prompt.size());
  if (num_prompt == 0) {
    return InvalidArgument("the prompt has no tokens; give at least one");
  }
  if (request.max_tokens < 0) {
    return InvalidArgument("max_tokens is {}; it must be 0 or more", request.max_tokens);
  }
  if (request.embed && request.max_tokens != 0) {
    return InvalidArgument("an embedding has no output, but max_tokens is {}", request.max_tokens);
  }
  const std::int64_t room = request.max_tokens > 0 ? 1 : 0;
  if (num_prompt + room > options_.max_model_len) {
    return InvalidArgument(
        "the prompt has {} tokens, but this model's context length is {} tokens, prompt and "
        "output; shorten the prompt",
        num_prompt,
        options_.max_model_len);
  }
  if (num_prompt + room > max_sequence_tokens()) {
    return InvalidArgument(
        "the prompt has {} tokens, but the KV cache holds {} tokens; shorten the prompt",
        num_prompt,
        max_sequence_tokens());
  }
  if (sequences_.contains(request.id)) {
    return AlreadyExists("sequence {} exists already", request.id);
  }
  const std::int64_t num_waiting = static_cast<std::int64_t>(waiting_.size()) + num_held_;
  if (num_waiting >= options_.max_waiting) {
    return ResourceExhausted("{} sequences are waiting, the most allowed; try again later",
                             num_waiting);
  }
  return {};
}

Result<> Scheduler::Impl::Add(SequenceRequest request) {
  INFERD_TRY(Validate(request));
  auto owned = std::make_unique<Sequence>();
  Sequence* sequence = owned.get();
  sequence->order = next_order_++;
  sequence->num_prompt = static_cast<std::int64_t>(request.prompt.size());
  sequence->max_tokens_total =
      sequence->num_prompt +
      std::min(request.max_tokens, max_sequence_tokens() - sequence->num_prompt);
  sequence->tokens = std::move(request.prompt);
  sequence->tokens.reserve(static_cast<std::size_t>(
      std::min(sequence->max_tokens_total, sequence->num_prompt + kMaxReservedOutput)));
  sequence->keys = std::move(request.prefix_keys);
  INFERD_CHECK(static_cast<std::int64_t>(sequence->keys.size()) <=
               sequence->num_prompt / options_.page_size);
  sequence->request = std::move(request);
  if (sequence->request.constrained) {
    sequence->request.num_speculative_tokens = 0;  // a mask is made for one token at a time
  }
  const SequenceRequest& own = sequence->request;
  waiting_.Arrive(
      sequence,
      LikelyCost(sequence->num_prompt, sequence->max_tokens_total - sequence->num_prompt));
  if (own.queue_deadline_ns != 0) {
    deadlines_.insert({own.queue_deadline_ns, own.id, true});
  }
  if (own.deadline_ns != 0) {
    deadlines_.insert({own.deadline_ns, own.id, false});
  }
  sequences_.emplace(own.id, std::move(owned));
  ++num_unfinished_;
  Enqueue(sequence);
  return {};
}

bool Scheduler::Impl::uses_forks(const Sequence& sequence) const {
  return sequence.request.fork_key != 0 && options_.prefix_cache &&
         sequence.num_prompt > options_.page_size && sequence.request.sampling.prompt_logprobs < 0;
}

// Into the queue, or behind the sibling that computes the shared prompt.
void Scheduler::Impl::Enqueue(Sequence* sequence) {
  if (uses_forks(*sequence)) {
    Fork& fork = forks_[sequence->request.fork_key];
    ++fork.num_members;
    if (!fork.ready && fork.first != nullptr) {
      sequence->state = SequenceState::kHeld;
      fork.held.push_back(sequence);
      ++num_held_;
      return;
    }
    if (!fork.ready) {
      fork.first = sequence;
    }
  }
  sequence->state = SequenceState::kWaiting;
  waiting_.Push(sequence);
  if (waiting_.First() == sequence) {
    admission_blocked_ = false;
  }
}

// Lets the first `count` held siblings into the queue.
void Scheduler::Impl::Unhold(Fork* fork, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    Sequence* sibling = fork->held[i];
    sibling->state = SequenceState::kWaiting;
    waiting_.Push(sibling);
    --num_held_;
  }
  fork->held.erase(fork->held.begin(), fork->held.begin() + static_cast<std::ptrdiff_t>(count));
  admission_blocked_ = false;
}

// The prompt of `sequence` is computed: its siblings can take it from the cache.
void Scheduler::Impl::ForkReady(Sequence* sequence) {
  const auto it = forks_.find(sequence->request.fork_key);
  if (it == forks_.end() || it->second.first != sequence) {
    return;
  }
  Fork& fork = it->second;
  fork.ready = true;
  fork.first = nullptr;
  Unhold(&fork, fork.held.size());
}

// An ended sequence leaves its siblings; if it had not computed the prompt, the next one must.
void Scheduler::Impl::LeaveFork(Sequence* sequence) {
  if (!uses_forks(*sequence)) {
    return;
  }
  const auto it = forks_.find(sequence->request.fork_key);
  Fork& fork = it->second;
  if (sequence->state == SequenceState::kHeld) {
    std::erase(fork.held, sequence);
    --num_held_;
  }
  if (fork.first == sequence) {
    fork.first = nullptr;
    if (!fork.held.empty()) {
      fork.first = fork.held.front();
      Unhold(&fork, 1);
    }
  }
  if (--fork.num_members == 0) {
    forks_.erase(it);
  }
}

void Scheduler::Impl::Cancel(std::uint64_t id) {
  const auto it = sequences_.find(id);
  if (it != sequences_.end() && it->second->state != SequenceState::kFinished) {
    Finish(it->second.get(), FinishReason::kAbort, std::nullopt);
  }
}

// Ends a sequence with an event of its own, without a token.
void Scheduler::Impl::Finish(Sequence* sequence, FinishReason reason, std::optional<Error> error) {
  TokenEvent& event = events_.emplace_back();
  event.id = sequence->request.id;
  event.finish = reason;
  event.num_cached_tokens = sequence->num_cached;
  event.admitted_ns = sequence->admitted_ns;
  event.error = std::move(error);
  MarkFinished(sequence, reason);
}

// Gives the requests that can be given: for the oldest sample in flight, or for all of a sequence
// that has ended.
void Scheduler::Impl::AskForMask(Sequence* sequence, bool wanted) {
  for (PlannedSample& sample : sequence->planned_samples) {
    if (!sample.asked) {
      sample.asked = true;
      mask_requests_.push_back({.id = sequence->request.id,
                                .step = sample.step,
                                .group = sequence->group,
                                .row = sample.row,
                                .num_output = sequence->num_output(),
                                .wanted = wanted});
    }
    if (wanted) {
      return;
    }
  }
}

void Scheduler::Impl::TakeMaskRequests(std::vector<MaskRequest>* requests) {
  requests->clear();
  requests->swap(mask_requests_);
}

// Takes a sequence out of everything but the steps in flight. The final event has been given.
void Scheduler::Impl::MarkFinished(Sequence* sequence, FinishReason reason) {
  ++stats_.finished[static_cast<std::size_t>(reason)];
  --num_unfinished_;
  const SequenceRequest& request = sequence->request;
  if (request.queue_deadline_ns != 0) {
    deadlines_.erase({request.queue_deadline_ns, request.id, true});
  }
  if (request.deadline_ns != 0) {
    deadlines_.erase({request.deadline_ns, request.id, false});
  }
  AskForMask(sequence, false);
  sequence->planned_samples.clear();
  LeaveFork(sequence);
  if (sequence->state == SequenceState::kWaiting) {
    waiting_.Remove(sequence);
    admission_blocked_ = false;
  }
  const std::int64_t num_prompt_run = sequence->answered_once
                                          ? sequence->num_prompt
                                          : std::min(sequence->num_computed, sequence->num_prompt);
  waiting_.Leave(sequence, num_prompt_run + sequence->num_output());
  if (sequence->is_running()) {
    LeaveRow(sequence);
  }
  sequence->state = SequenceState::kFinished;
  if (sequence->outstanding == 0) {
    Drained(sequence);
  }
}

// Gives up the row, and the pages as soon as no step in flight uses them.
void Scheduler::Impl::LeaveRow(Sequence* sequence) {
  Group& group = group_of(*sequence);
  const auto take_out = [sequence](std::vector<Sequence*>* list) {
    const auto it = std::lower_bound(list->begin(), list->end(), sequence, RunsBefore());
    INFERD_CHECK(it != list->end() && *it == sequence);
    return list->erase(it) - list->begin();
  };
  const auto index = static_cast<std::size_t>(take_out(&group.running));
  group.decode_cursor -= index < group.decode_cursor ? 1 : 0;
  if (sequence->state == SequenceState::kPrefill) {
    take_out(&group.prefilling);
    group.prefill_backlog -=
        static_cast<std::int64_t>(sequence->tokens.size()) - sequence->next_position;
  }
  group.released_rows.push_back(sequence->row);
  group.row_used[static_cast<std::size_t>(sequence->row)] = false;
  sequence->row = -1;
  group.draining_pages += static_cast<std::int64_t>(sequence->pages.size());
  admission_blocked_ = false;
}

void Scheduler::Impl::ReleasePages(Sequence* sequence) {
  if (sequence->pages.empty()) {
    return;
  }
  Group& group = group_of(*sequence);
  group.draining_pages -= static_cast<std::int64_t>(sequence->pages.size());
  group.blocks.Release(sequence->pages);
  sequence->pages.clear();
  admission_blocked_ = false;
}

// No step in flight refers to a preempted or ended sequence any more.
void Scheduler::Impl::Drained(Sequence* sequence) {
  ReleasePages(sequence);
  if (sequence->state == SequenceState::kFinished) {
    sequences_.erase(sequence->request.id);
    return;
  }
  sequence->state = SequenceState::kWaiting;
  waiting_.Push(sequence);
  admission_blocked_ = false;
}

void Scheduler::Impl::ExpireDeadlines() {
  if (deadlines_.empty()) {
    return;
  }
  const std::int64_t now_ns = clock_.NowNs();
  while (!deadlines_.empty() && deadlines_.begin()->time_ns <= now_ns) {
    const Deadline deadline = *deadlines_.begin();
    deadlines_.erase(deadlines_.begin());
    Sequence* sequence = sequences_.at(deadline.id).get();
    if (!deadline.queue_only) {
      Finish(
          sequence,
          FinishReason::kError,
          DeadlineExceeded("the deadline passed after {} output tokens", sequence->num_output()));
    } else if (!sequence->planned_once) {
      Finish(sequence,
             FinishReason::kError,
             DeadlineExceeded("still queued with {} others at the queue deadline; try again later",
                              waiting_.size() - 1 + static_cast<std::size_t>(num_held_)));
    }
  }
}

void Scheduler::Impl::Reset(std::uint64_t generation) {
  generation_ = generation;
  next_step_ = 0;
  in_flight_.clear();
  mask_requests_.clear();
  waiting_.Clear();
  forks_.clear();
  num_held_ = 0;
  admission_blocked_ = false;
  for (auto& group : groups_) {
    group = std::make_unique<Group>(options_);
  }
  if (observer_ != nullptr) {
    Observe(observer_);
    observer_->OnCleared();
  }
  std::erase_if(sequences_,
                [](const auto& item) { return item.second->state == SequenceState::kFinished; });
  std::vector<Sequence*> order;
  for (auto& [id, sequence] : sequences_) {
    sequence->pages.clear();
    sequence->planned_samples.clear();
    sequence->outstanding = 0;
    order.push_back(sequence.get());
  }
  // Those that had a row first: of siblings the one that had begun computes the prompt again.
  std::sort(order.begin(), order.end(), [](const Sequence* a, const Sequence* b) {
    if (a->planned_once != b->planned_once) {
      return a->planned_once;
    }
    return a->planned_once ? RunsBefore()(a, b) : a->order < b->order;
  });
  for (Sequence* sequence : order) {
    Enqueue(sequence);
  }
  ++stats_.resets;
}

void Scheduler::Impl::TakeEvents(std::vector<TokenEvent>* events) {
  events->clear();
  events->swap(events_);
}

SchedulerStats Scheduler::Impl::Stats() const {
  SchedulerStats stats = stats_;
  stats.in_flight = num_in_flight();
  for (const auto& group : groups_) {
    stats.running += static_cast<std::int64_t>(group->running.size());
    stats.kv_pages_total += group->blocks.num_total();
    stats.kv_pages_used += group->blocks.num_used();
    stats.kv_pages_cached += group->blocks.num_cached();
    stats.kv_pages_free += group->blocks.num_free();
  }
  stats.waiting = num_unfinished_ - stats.running;
  return stats;
}

// What must hold between any two calls; an idle scheduler holds no page and no row.
Result<> Scheduler::Impl::Audit() const {
  std::vector<std::int64_t> num_pages(groups_.size(), 0);
  std::int64_t num_unfinished = 0;
  for (const auto& [id, sequence] : sequences_) {
    num_unfinished += sequence->state == SequenceState::kFinished ? 0 : 1;
    if (!sequence->pages.empty()) {
      num_pages[static_cast<std::size_t>(sequence->group)] +=
          static_cast<std::int64_t>(sequence->pages.size());
    }
    if (!sequence->is_running() && !sequence->pages.empty() && sequence->outstanding == 0) {
      return Internal("sequence {} does not run but holds {} pages", id, sequence->pages.size());
    }
  }
  if (num_unfinished != num_unfinished_) {
    return Internal("{} sequences are unfinished, counted {}", num_unfinished, num_unfinished_);
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = *groups_[i];
    INFERD_TRY(group.blocks.Audit());
    if (group.blocks.num_references() != num_pages[i]) {
      return Internal("group {}: pages have {} references, sequences hold {}",
                      i,
                      group.blocks.num_references(),
                      num_pages[i]);
    }
    const std::size_t num_rows =
        group.free_rows.size() + group.released_rows.size() + group.running.size();
    if (num_rows != static_cast<std::size_t>(options_.max_num_seqs)) {
      return Internal("group {}: {} rows add up to {} of {}",
                      i,
                      group.running.size(),
                      num_rows,
                      options_.max_num_seqs);
    }
    std::int64_t draining = 0;
    std::int64_t backlog = 0;
    for (const auto& [id, sequence] : sequences_) {
      if (sequence->group == static_cast<std::int32_t>(i)) {
        draining += sequence->is_running() ? 0 : static_cast<std::int64_t>(sequence->pages.size());
        backlog +=
            sequence->state == SequenceState::kPrefill
                ? static_cast<std::int64_t>(sequence->tokens.size()) - sequence->next_position
                : 0;
      }
    }
    if (draining != group.draining_pages || backlog != group.prefill_backlog) {
      return Internal("group {}: draining pages {} counted {}, prefill backlog {} counted {}",
                      i,
                      draining,
                      group.draining_pages,
                      backlog,
                      group.prefill_backlog);
    }
  }
  return {};
}

Scheduler::Scheduler(const SchedulerOptions& options,
                     const base::Clock& clock,
                     const PrefixHasher& hasher)
    : impl_(std::make_unique<Impl>(options, clock, hasher)) {}
Scheduler::~Scheduler() = default;

Result<> Scheduler::Add(SequenceRequest request) { return impl_->Add(std::move(request)); }
void Scheduler::Cancel(std::uint64_t id) { impl_->Cancel(id); }
std::optional<spec::StepPlan> Scheduler::Schedule() { return impl_->Schedule(); }
Result<> Scheduler::Complete(const spec::StepResult& result) { return impl_->Complete(result); }
void Scheduler::Observe(BlockObserver* observer) { impl_->Observe(observer); }
void Scheduler::Reset(std::uint64_t generation) { impl_->Reset(generation); }
void Scheduler::ExpireDeadlines() { impl_->ExpireDeadlines(); }
void Scheduler::TakeEvents(std::vector<TokenEvent>* events) { impl_->TakeEvents(events); }
void Scheduler::TakeMaskRequests(std::vector<MaskRequest>* requests) {
  impl_->TakeMaskRequests(requests);
}
bool Scheduler::has_unfinished() const { return impl_->has_unfinished(); }
std::int64_t Scheduler::num_in_flight() const { return impl_->num_in_flight(); }
SchedulerStats Scheduler::Stats() const { return impl_->Stats(); }
Result<> Scheduler::Audit() const { return impl_->Audit(); }
std::int64_t Scheduler::max_sequence_tokens() const { return impl_->max_sequence_tokens(); }

}  // namespace inferd::engine
