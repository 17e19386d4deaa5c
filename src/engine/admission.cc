// SPDX-License-Identifier: Apache-2.0
// From the queue to a row: strictly in the order of FairQueue, so the head of the queue is never
// overtaken. A sequence gets pages for all its known tokens at once; only decoding can run out of
// pages later.
#include "base/check.h"
#include "engine/scheduler_impl.h"

#include <algorithm>
#include <cstddef>

namespace inferd::engine {
namespace {

constexpr std::int64_t kMaxSparePages = 16;
/// Load of a running sequence, in tokens of prefill, when groups are compared.
constexpr std::int64_t kRunningCost = 32;

void InsertSorted(Sequence* sequence, std::vector<Sequence*>* list) {
  list->insert(std::lower_bound(list->begin(), list->end(), sequence, RunsBefore()), sequence);
}

}  // namespace

// Newcomers only as fast as prefill goes on: a waiting sequence holds no pages. Two at least, so
// that a short prompt can pass a long one, and at once what runs before one that is being
// prefilled.
bool Scheduler::Impl::HasPlaceFor(const Group& group, const Sequence& sequence) const {
  return group.budget > 0 && (group.prefilling.size() < 2 || group.prefill_backlog < group.budget ||
                              RunsBefore()(&sequence, group.prefilling.back()));
}

void Scheduler::Impl::Admit() {
  while (!waiting_.empty() && !admission_blocked_) {
    Sequence* sequence = waiting_.First();
    const auto has_place = [&](const auto& group) { return HasPlaceFor(*group, *sequence); };
    if (std::none_of(groups_.begin(), groups_.end(), has_place)) {
      return;
    }
    if (!TryAdmit(sequence)) {
      const bool all_tried = std::all_of(groups_.begin(), groups_.end(), has_place);
      admission_blocked_ = all_tried && !PreemptFor(*sequence);
      return;
    }
  }
}

// Tries the groups from the cheapest: tokens left to compute there, for this sequence and those
// before it.
bool Scheduler::Impl::TryAdmit(Sequence* sequence) {
  const auto num_tokens = static_cast<std::int64_t>(sequence->tokens.size());
  if (options_.prefix_cache) {
    hasher_.Extend(sequence->tokens, sequence->request.cache_salt, &sequence->keys);
  }
  if (groups_.size() == 1) {
    return TryAdmitTo(sequence, 0);
  }
  std::vector<std::pair<std::int64_t, std::int32_t>> order;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = *groups_[i];
    group.blocks.Lookup(
        sequence->keys, sequence->tokens, (num_tokens - 1) / options_.page_size, &prefix_);
    const std::int64_t cached =
        static_cast<std::int64_t>(prefix_.pages.size()) * options_.page_size;
    const std::int64_t running = static_cast<std::int64_t>(group.running.size());
    order.emplace_back(num_tokens - cached + group.prefill_backlog + kRunningCost * running,
                       static_cast<std::int32_t>(i));
  }
  std::sort(order.begin(), order.end());
  return std::any_of(order.begin(), order.end(), [&](const auto& item) {
    return TryAdmitTo(sequence, item.second);
  });
}

bool Scheduler::Impl::TryAdmitTo(Sequence* sequence, std::int32_t group_index) {
  Group& group = *groups_[static_cast<std::size_t>(group_index)];
  if (group.free_rows.empty() || !HasPlaceFor(group, *sequence)) {
    return false;
  }
  const auto num_tokens = static_cast<std::int64_t>(sequence->tokens.size());
  const std::int64_t limit =
      sequence->wants_prompt_logprobs() ? 0 : (num_tokens - 1) / options_.page_size;
  group.blocks.Lookup(sequence->keys, sequence->tokens, limit, &prefix_);
  group.blocks.Acquire(prefix_.pages);
  const auto num_hits = static_cast<std::int64_t>(prefix_.pages.size());
  const std::int64_t needed = PagesOf(num_tokens) - num_hits;
  // A page for each running sequence to grow into; else the newcomer would soon be preempted again.
  const std::int64_t kept =
      std::min(static_cast<std::int64_t>(group.running.size()), options_.num_pages / 16);
  if (group.blocks.num_available() < needed + kept) {
    group.blocks.Release(prefix_.pages);
    return false;
  }
  sequence->pages.assign(prefix_.pages.begin(), prefix_.pages.end());
  const std::int64_t growth = PagesOf(sequence->max_tokens_total) - PagesOf(num_tokens);
  INFERD_CHECK(group.blocks.Allocate(needed, std::min(growth, kMaxSparePages), &sequence->pages));
  sequence->page_capacity = static_cast<std::int64_t>(sequence->pages.size()) * options_.page_size;
  sequence->group = group_index;
  sequence->row = group.free_rows.back();
  group.free_rows.pop_back();
  group.row_used[static_cast<std::size_t>(sequence->row)] = true;
  sequence->row_opened = false;
  sequence->num_hit_pages = num_hits;
  sequence->num_pages_sent = 0;
  sequence->num_committed = num_hits;
  sequence->chain_serial = prefix_.serial;
  sequence->next_position = sequence->num_computed = num_hits * options_.page_size;
  sequence->expected_tokens = num_tokens;
  sequence->last_step = sequence->sample_step = -1;
  waiting_.Serve(sequence);
  if (!sequence->planned_once) {
    sequence->planned_once = true;
    sequence->admitted_ns = clock_.NowNs();
    sequence->num_cached = std::min(sequence->next_position, sequence->num_prompt);
  }
  sequence->state = SequenceState::kPrefill;
  InsertSorted(sequence, &group.running);
  InsertSorted(sequence, &group.prefilling);
  group.prefill_backlog += num_tokens - sequence->next_position;
  if (limit > 0) {
    stats_.prefix_query_tokens += num_tokens;
    stats_.prefix_hit_tokens += sequence->next_position;
  }
  return true;
}

// Makes room for the head of the queue by taking rows from sequences of strictly worse priority.
// Returns whether room is on its way; it comes at the next plan at the earliest.
bool Scheduler::Impl::PreemptFor(const Sequence& sequence) {
  Group* chosen = nullptr;
  for (auto& group : groups_) {
    if (group->draining_pages > 0) {
      return true;  // see first what comes back by itself
    }
    if (!group->running.empty() &&
        (chosen == nullptr || RunsBefore()(chosen->running.back(), group->running.back()))) {
      chosen = group.get();
    }
  }
  const std::int64_t priority = sequence.request.priority;
  const auto is_worse = [priority](const Sequence* other) {
    return other->request.priority > priority;
  };
  if (chosen == nullptr || !is_worse(chosen->running.back())) {
    return false;
  }
  const std::int64_t needed = PagesOf(static_cast<std::int64_t>(sequence.tokens.size()));
  std::int64_t within_reach = chosen->blocks.num_available();
  for (const Sequence* other : chosen->running) {
    within_reach += is_worse(other) ? static_cast<std::int64_t>(other->pages.size()) : 0;
  }
  if (within_reach < needed) {
    return false;
  }
  do {
    Preempt(chosen->running.back());
  } while (chosen->blocks.num_available() + chosen->draining_pages < needed &&
           !chosen->running.empty() && is_worse(chosen->running.back()));
  return true;
}

void Scheduler::Impl::Preempt(Sequence* sequence) {
  ++stats_.preemptions;
  LeaveRow(sequence);
  sequence->state = SequenceState::kPreempted;
  if (sequence->outstanding == 0) {
    Drained(sequence);
  }
}

}  // namespace inferd::engine
