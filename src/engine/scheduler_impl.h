// SPDX-License-Identifier: Apache-2.0
// The scheduler's state. Its parts: scheduler.cc (in and out of the queue), admission.cc (queue to
// rows), step_planning.cc (rows to plan), step_completion.cc (result to events).
#pragma once

#include "engine/block_manager.h"
#include "engine/fair_queue.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/step_pacer.h"

#include <compare>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace inferd::engine {

class Scheduler::Impl {
 public:
  Impl(const SchedulerOptions& options, const base::Clock& clock, const PrefixHasher& hasher);

  void Observe(BlockObserver* observer);
  Result<> Add(SequenceRequest request);
  void Cancel(std::uint64_t id);
  std::optional<spec::StepPlan> Schedule();
  Result<> Complete(const spec::StepResult& result);
  void Reset(std::uint64_t generation);
  void ExpireDeadlines();
  void TakeEvents(std::vector<TokenEvent>* events);
  void TakeMaskRequests(std::vector<MaskRequest>* requests);
  bool has_unfinished() const { return num_unfinished_ > 0; }
  std::int64_t num_in_flight() const { return static_cast<std::int64_t>(in_flight_.size()); }
  SchedulerStats Stats() const;
  Result<> Audit() const;
  std::int64_t max_sequence_tokens() const;

 private:
  /// Work of one sequence in one step in flight.
  struct Entry {
    Sequence* sequence = nullptr;
    std::int32_t row = 0;
    bool sample = false;
    std::int64_t end = 0;  // position after the last one run, guesses left out
    std::int32_t num_guessed = 0;
  };

  struct StepInFlight {
    std::vector<std::vector<Entry>> groups;  // [group], in the order of the plan
    std::int32_t num_left = 0;               // groups without a result
    std::int64_t planned_ns = 0;
    // Of the group with the most: rows of decodes and their guesses, tokens of prompts.
    std::int64_t decodes = 0, prompt_tokens = 0;
  };

  struct Chunk {
    Sequence* sequence = nullptr;
    std::int64_t count = 0;
  };

  struct Group {
    Group(const SchedulerOptions& options);

    BlockManager blocks;
    std::vector<Sequence*> running;       // kPrefill and kDecode, sorted by RunsBefore
    std::vector<Sequence*> prefilling;    // kPrefill, sorted by RunsBefore
    std::vector<std::int32_t> free_rows;  // a stack
    std::vector<std::int32_t>
        released_rows;  // given up since the last plan; free from the next one on
    std::vector<std::int32_t>
        rows_to_close;           // open on the worker; closed by the next plan unless reopened
    std::vector<bool> row_used;  // [row] a sequence has it
    std::vector<bool> row_open;  // [row] open on the worker after the plans so far
    std::size_t decode_cursor =
        0;  // where the next step's decodes begin when not all fit into a step
    std::int64_t draining_pages = 0;   // held by preempted or ended sequences with steps in flight
    std::int64_t prefill_backlog = 0;  // known tokens of `prefilling` not planned yet
    std::int64_t next_result = 0;      // step whose result comes next
    std::int64_t budget = 0;           // of the step being planned
    bool has_decodes = false;          // in the step being planned
    std::vector<Chunk> chunks;         // prefill of the step being planned
  };

  struct Fork {
    Sequence* first = nullptr;  // computes the prompt; null once it has
    bool ready = false;
    std::int64_t num_members = 0;
    std::vector<Sequence*> held;
  };

  struct Deadline {
    std::int64_t time_ns = 0;
    std::uint64_t id = 0;
    bool queue_only = false;
    friend auto operator<=>(const Deadline&, const Deadline&) = default;
  };

  // scheduler.cc
  Result<> Validate(const SequenceRequest& request) const;
  void Enqueue(Sequence* sequence);
  void Finish(Sequence* sequence, FinishReason reason, std::optional<Error> error);
  void MarkFinished(Sequence* sequence, FinishReason reason);
  void LeaveFork(Sequence* sequence);
  void ForkReady(Sequence* sequence);
  void Unhold(Fork* fork, std::size_t count);
  void LeaveRow(Sequence* sequence);
  void ReleasePages(Sequence* sequence);
  void Drained(Sequence* sequence);
  void AskForMask(Sequence* sequence, bool wanted);
  bool uses_forks(const Sequence& sequence) const;

  // admission.cc
  void Admit();
  bool TryAdmit(Sequence* sequence);
  bool TryAdmitTo(Sequence* sequence, std::int32_t group_index);
  bool HasPlaceFor(const Group& group, const Sequence& sequence) const;
  bool PreemptFor(const Sequence& sequence);
  void Preempt(Sequence* sequence);
  std::int64_t PagesOf(std::int64_t tokens) const {
    return (tokens + options_.page_size - 1) / options_.page_size;
  }

  // step_planning.cc
  void PlanWork(spec::StepPlan* plan);
  void BeginStep();
  void PlanDecodes(Group* group, bool allow_dependent, spec::StepPlan* plan);
  bool ReserveForDecode(Sequence* sequence);
  void Guess(Sequence* sequence, std::int64_t most);
  void ShareOutPrefill(Group* group);
  void PlanPrefills(Group* group, spec::StepPlan* plan);
  spec::RowWork& EmitWork(Sequence* sequence,
                          std::int64_t count,
                          bool sample,
                          spec::StepPlan* plan);
  void EmitDecode(Sequence* sequence, spec::StepPlan* plan);
  void OpenRow(Sequence* sequence, spec::StepPlan* plan);
  void CloseRows(spec::StepPlan* plan);
  std::int64_t DecodeLimit(const Group& group) const;

  // step_completion.cc
  void LearnPace(const StepInFlight& step);
  Result<> CompleteEntries(const spec::StepResult& result, const std::vector<Entry>& entries);
  void CompleteEntry(const Entry& entry, std::span<const spec::SampledToken> sampled);
  bool TakeTokens(const Entry& entry, std::span<const spec::SampledToken> sampled);
  void LearnFrom(Sequence* sequence, std::int32_t token);
  Result<> GivePromptLogprobs(const spec::StepResult& result, const std::vector<Entry>& entries);
  Result<> GiveEmbeddings(const spec::StepResult& result, const std::vector<Entry>& entries);
  BlockName NameOf(const Sequence& sequence, std::size_t block) const;
  void Advance(Sequence* sequence, std::int64_t end);
  bool TakeToken(Sequence* sequence, const spec::SampledToken& sampled);
  bool EndsAt(const Sequence& sequence, std::int32_t token) const;

  Group& group_of(const Sequence& sequence) {
    return *groups_[static_cast<std::size_t>(sequence.group)];
  }

  const SchedulerOptions options_;
  const base::Clock& clock_;
  const PrefixHasher hasher_;
  const PrefixHasher names_;  // of blocks, for the observer
  BlockObserver* observer_ = nullptr;
  std::uint64_t generation_ = 0;
  std::int64_t next_step_ = 0;
  std::int64_t next_order_ = 0;
  std::int64_t num_unfinished_ = 0;
  std::int64_t num_held_ = 0;
  /// The head of the queue found no place; nothing has been given back since, so do not look again.
  bool admission_blocked_ = false;
  std::unordered_map<std::uint64_t, std::unique_ptr<Sequence>> sequences_;
  std::vector<std::unique_ptr<Group>> groups_;
  FairQueue waiting_;
  std::unordered_map<std::uint64_t, Fork> forks_;
  std::set<Deadline> deadlines_;
  std::deque<StepInFlight> in_flight_;     // steps [next_step_ - size, next_step_)
  std::vector<StepInFlight> spare_steps_;  // emptied ones, to reuse their memory
  StepPacer pacer_;
  std::int64_t last_completed_ns_ = 0;  // when the last step was whole
  StepInFlight current_;                // the step being planned
  BlockManager::Prefix prefix_;         // scratch of admission
  std::vector<Sequence*> candidates_;   // scratch of PlanDecodes
  std::vector<std::int32_t> draft_;     // scratch of PlanDecodes
  std::vector<TokenEvent> events_;
  std::vector<MaskRequest> mask_requests_;
  SchedulerStats stats_;
};

}  // namespace inferd::engine
