// SPDX-License-Identifier: Apache-2.0
// One step of a replica: what the engine sends to every rank, and what comes back. Rows persist on
// the worker between steps, so a plan carries only what changed.
#pragma once

#include "spec/sampling_params.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace inferd::spec {

/// A row is a worker-side slot of one running sequence, 0 <= row < max_num_seqs (of its group).
/// Opening a row that is open replaces it. `tokens` are all tokens known now (prompt, and output
/// replayed after a preemption or fault); the sampler needs them for penalties, the first stage for
/// prefill.
struct OpenRow {
  std::int32_t row = 0;
  std::int32_t group = 0;  // expert group that holds the sequence's KV
  std::vector<std::int32_t> tokens;
  std::int32_t num_prompt_tokens = 0;  // tokens[num_prompt_tokens..) were generated
  bool constrained = false;            // each sample of the row waits for its TokenMask
  SamplingParams sampling;
};

/// Work of one row in this step: run positions [start, start + count).
struct RowWork {
  std::int32_t row = 0;
  std::int32_t group = 0;
  std::int64_t start = 0;
  std::int32_t count = 0;
  bool sample = false;  // the last position's logits give a token
  /// Guesses of the tokens that this step will sample, run as inputs of its last draft.size()
  /// positions: `count` includes them, `sample` is set, and the row is not constrained. The
  /// position before the first of them is sampled too; as long as a sample is what was guessed, so
  /// is the next one. What was run after a wrong guess will be run again.
  std::vector<std::int32_t> draft;
  bool embed = false;  // the last position's hidden state is asked for
  /// Step whose sampled token is the input (decode); -1: all inputs are known to the row already.
  std::int64_t input_step = -1;
  /// Pages appended to the row's page table before the step.
  std::vector<std::int32_t> new_pages;
  /// Replaces the page table by `new_pages` (first step of an opened row, prefix hits included).
  bool reset_pages = false;
};

struct StepPlan {
  std::uint64_t generation = 0;
  std::int64_t step = 0;  // counts up by one within a generation
  std::vector<OpenRow> open_rows;
  std::vector<std::pair<std::int32_t, std::int32_t>> close_rows;  // (group, row)
  /// Pages to be zeroed before use, per group: (group, page).
  std::vector<std::pair<std::int32_t, std::int32_t>> fresh_pages;
  std::vector<RowWork> work;
};

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;
};

struct SampledToken {
  std::int32_t row = 0;
  std::int32_t group = 0;
  std::int32_t token = -1;  // -1: logits held NaN, the row has failed
  float logprob =
      0;  // of the token, under the model's distribution before temperature; 0 unless asked for
  std::int32_t rank = 0;          // 1: most likely; 0: not asked for
  std::vector<TokenLogprob> top;  // descending
};

/// Prompt logprobs of positions [first, first + tokens.size()) of a row: token at first + i given
/// those before it.
struct PromptLogprobs {
  std::int32_t row = 0;
  std::int32_t group = 0;
  std::int64_t first = 0;
  std::vector<SampledToken> tokens;
};

/// The final hidden state of a row's last position, after the model's last norm.
struct RowEmbedding {
  std::int32_t row = 0;
  std::int32_t group = 0;
  std::vector<float> values;  // [hidden]
};

/// From the sampler rank of each expert group.
struct StepResult {
  std::uint64_t generation = 0;
  std::int64_t step = 0;
  std::int32_t group = 0;
  /// In the order of the plan's work. A row with a draft gives one token for each right guess and
  /// one more, of positions that follow one another.
  std::vector<SampledToken> sampled;
  std::vector<PromptLogprobs> prompt_logprobs;
  std::vector<RowEmbedding> embeddings;
  std::int64_t compute_ns = 0;              // time of the step on the device
  std::vector<std::int64_t> expert_tokens;  // tokens routed to each local expert, when counted
};

}  // namespace inferd::spec
