// SPDX-License-Identifier: Apache-2.0
// The scheduler of one replica: sequences in, step plans out, step results in, token events out.
#pragma once

#include "base/clock.h"
#include "engine/block_observer.h"
#include "engine/prefix_hasher.h"
#include "engine/prompt_lookup.h"
#include "engine/request.h"
#include "inferd/result.h"
#include "spec/step.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace inferd::engine {

struct SchedulerOptions {
  std::int32_t num_groups = 1;  // expert groups; each has its own rows, pages and token budget
  std::int32_t num_stages =
      1;  // pipeline stages: a sequence's decodes are at least this many steps apart
  /// Steps planned and not completed. One step ahead of the devices: num_stages + 1.
  std::int32_t max_in_flight = 2;
  std::int32_t page_size = 32;
  std::int64_t num_pages = 0;             // per group
  std::int32_t max_num_seqs = 64;         // rows per group
  std::int32_t max_batched_tokens = 512;  // per step and group, at least 2
  /// As StepPacerOptions::target_itl_ns.
  std::int64_t target_itl_ns = 0;
  std::int64_t max_model_len = 4096;  // prompt and output
  std::int64_t max_waiting = 1024;    // sequences that Add() lets wait
  bool prefix_cache = true;
  PromptLookupOptions prompt_lookup;
  /// Rows that a step may have in all when sequences guess ahead (their guesses are rows too):
  /// about where one more row of a decode step stops being almost free.
  std::int32_t max_speculative_rows = 16;
};

/// A snapshot for metrics; counters count from construction and survive Reset().
struct SchedulerStats {
  std::int64_t running = 0;
  std::int64_t waiting = 0;  // held siblings and preempted ones included
  std::int64_t in_flight = 0;
  std::int64_t kv_pages_total = 0;   // all groups
  std::int64_t kv_pages_used = 0;    // referenced by a sequence
  std::int64_t kv_pages_cached = 0;  // only the prefix cache holds them; can be evicted
  std::int64_t kv_pages_free = 0;
  std::int64_t steps = 0;
  std::int64_t prefix_query_tokens = 0;
  std::int64_t prefix_hit_tokens = 0;
  std::int64_t prompt_tokens = 0;      // positions run below the prompt's length, replays included
  std::int64_t generation_tokens = 0;  // tokens given out in events
  std::int64_t dropped_tokens = 0;     // sampled one step ahead of an end token
  std::int64_t drafts = 0;             // steps of a sequence with guesses
  std::int64_t draft_tokens = 0;       // guessed
  std::int64_t accepted_tokens = 0;    // guessed right, and given out
  std::int64_t preemptions = 0;
  std::int64_t resets = 0;
  std::array<std::int64_t, 5> finished{};  // by FinishReason
};

/// Owner: the engine thread of the replica; not thread-safe, does no I/O, takes time only from
/// `clock`.
///
/// The caller's loop: Schedule() until it gives nothing, send the plans in order; Complete() each
/// result in the order of steps; TakeEvents() after either. Rank-side contract: plans are executed
/// in order, so a row or page that one plan gives up may be reused by a later one.
///
/// RowWork::input_step names the step that sampled the input, even if its result has come back
/// already; -1 means the input tokens were all in OpenRow. In a plan, rows in close_rows are never
/// opened or used; the caller may apply the parts in the order close_rows, open_rows, fresh_pages,
/// work.
class Scheduler {
 public:
  Scheduler(const SchedulerOptions& options, const base::Clock& clock, const PrefixHasher& hasher);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// From now on told of what the prefix cache holds. Outlives this. Call before the first Add().
  void Observe(BlockObserver* observer);

  /// Queues a sequence. kResourceExhausted: the queue is full, try later. kInvalidArgument: it can
  /// never run.
  Result<> Add(SequenceRequest request);

  /// Ends a sequence in any state with a kAbort event; unknown or ended ids are ignored. Its pages
  /// return once the steps that use them have completed.
  void Cancel(std::uint64_t id);

  /// The next step, if there is work and a place in flight. Never empty-handed while sequences are
  /// unfinished and nothing is in flight.
  std::optional<spec::StepPlan> Schedule();

  /// Takes in the result of a step of one group. Results of another generation are dropped. An
  /// error means that the result contradicts the plan: the caller treats the worker as faulty and
  /// calls Reset().
  Result<> Complete(const spec::StepResult& result);

  /// After a fault: forgets all steps in flight, all pages and the prefix cache. Running sequences
  /// go back to the queue in order and are replayed from prompt and output. Steps count from 0
  /// again.
  void Reset(std::uint64_t generation);

  /// Ends what is past its deadline. Schedule() does this too; call it while no steps can be
  /// planned.
  void ExpireDeadlines();

  /// Swaps the collected events into `events` (cleared first); keep one vector to avoid allocation.
  void TakeEvents(std::vector<TokenEvent>* events);

  /// The same for mask requests, which Schedule(), Complete() and Cancel() give. They are of the
  /// present generation: Reset() drops those not taken.
  void TakeMaskRequests(std::vector<MaskRequest>* requests);

  bool has_unfinished() const;
  std::int64_t num_in_flight() const;
  SchedulerStats Stats() const;
  /// Recounts pages, rows and sequences: an error is a leak, our bug. O(pages); for tests and for
  /// an idle scheduler.
  Result<> Audit() const;
  /// The most tokens (prompt and output) a sequence can have: the smaller of max_model_len and the
  /// KV pool.
  std::int64_t max_sequence_tokens() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace inferd::engine
