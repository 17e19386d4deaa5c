// SPDX-License-Identifier: Apache-2.0
// The engine's state of one sequence; private to the scheduler.
#pragma once

#include "engine/block_manager.h"
#include "engine/prompt_lookup.h"
#include "engine/request.h"

#include <cstdint>
#include <vector>

namespace inferd::engine {

struct FairUser;

/// kHeld -> kWaiting: the sibling that computes the shared prompt is done.
/// kWaiting -> kPrefill: given a row and pages for all its tokens.
/// kPrefill -> kDecode: the last known token is planned.
/// kPrefill, kDecode -> kPreempted: row taken away; its steps in flight still count.
/// kPreempted -> kWaiting: last step in flight completed, pages returned.
/// any -> kFinished: final event given; the object stays until its last step in flight completes.
enum class SequenceState : std::uint8_t {
  kHeld,
  kWaiting,
  kPrefill,
  kDecode,
  kPreempted,
  kFinished
};

/// A sample in flight of a constrained sequence.
struct PlannedSample {
  std::int64_t step = 0;
  std::int32_t row = 0;
  bool asked = false;  // its MaskRequest has been given
};

struct alignas(64) Sequence {
  // Used for every decode row of every step: few cache lines, in front.
  SequenceState state = SequenceState::kWaiting;
  bool row_opened = false;     // OpenRow is planned
  bool planned_once = false;   // queue_deadline_ns is met
  bool answered_once = false;  // an event with a token was given
  bool guesses = false;        // steps wait for one another, so that what follows can be guessed
  std::int32_t group = -1;
  std::int32_t row = -1;
  std::int32_t outstanding = 0;       // steps in flight with work of it
  std::int64_t next_position = 0;     // positions below are computed or planned
  std::int64_t expected_tokens = 0;   // tokens.size() and samples in flight
  std::int64_t max_tokens_total = 0;  // prompt and output
  std::int64_t page_capacity = 0;     // pages.size() * page size
  std::int64_t last_step = -1;        // last planned work
  std::int64_t sample_step = -1;      // last planned sample since the row was opened
  std::int64_t num_pages_sent = 0;    // the worker's page table holds that many
  std::int64_t num_computed = 0;      // positions whose steps have completed
  std::int64_t num_committed = 0;  // leading blocks that are cached, or were offered to the cache
  std::int64_t num_prompt = 0;
  std::int64_t num_cached =
      0;  // prompt tokens of the first admission that came from the prefix cache
  std::vector<std::int32_t> tokens;

  // Used now and then.
  std::vector<Hash128> keys;   // of the leading full blocks, as far as needed yet
  std::vector<Hash128> names;  // the same by the stable hasher; only with an observer
  std::vector<std::int32_t> pages;
  std::uint64_t chain_serial = BlockManager::kRoot;  // of block num_committed - 1
  std::int64_t num_hit_pages = 0;          // leading pages taken from the cache at this admission
  std::int64_t turn = 0;                   // virtual time of its first row (FairQueue)
  std::int64_t cost = 0;                   // charged for it
  FairUser* fair_user = nullptr;           // the queue's
  std::int64_t order = 0;                  // of arrival
  std::int64_t admitted_ns = 0;            // first time it got a row; 0: not yet
  std::int64_t prompt_logprobs_given = 1;  // positions below; position 0 has none
  std::vector<PlannedSample> planned_samples;  // if constrained; oldest first
  GuessRecord guess_record;
  SequenceRequest request;  // its prompt has moved to `tokens`

  std::int64_t num_output() const { return static_cast<std::int64_t>(tokens.size()) - num_prompt; }
  bool is_running() const {
    return state == SequenceState::kPrefill || state == SequenceState::kDecode;
  }
  bool wants_prompt_logprobs() const {
    return request.sampling.prompt_logprobs >= 0 && prompt_logprobs_given < num_prompt;
  }
};

/// Who goes first of those who have had a row: better (lower) priority, then earlier turn, then
/// earlier arrival. A total order that is fixed with the first row, and turns never go back, hence
/// the first one always advances. Who gets a first row is for FairQueue to say.
struct RunsBefore {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->request.priority != b->request.priority) {
      return a->request.priority < b->request.priority;
    }
    if (a->turn != b->turn) {
      return a->turn < b->turn;
    }
    return a->order < b->order;
  }
};

}  // namespace inferd::engine
