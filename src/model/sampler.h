// SPDX-License-Identifier: Apache-2.0
// The next token of a sequence from its logits. Counter-based: (seed, position) fixes the random
// number, so a replayed sequence continues with the same tokens. All functions are pure in the row
// and its state.
#pragma once

#include "spec/sampling_params.h"
#include "spec/step.h"
#include "spec/token_mask.h"

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace inferd::model {

/// What sampling remembers of one sequence; lives in the row on the sampler rank.
class SamplingState {
 public:
  SamplingState() = default;
  /// tokens[0..num_prompt) are the prompt, the rest was generated.
  SamplingState(const spec::SamplingParams& params,
                std::span<const std::int32_t> tokens,
                std::int64_t num_prompt);

  const spec::SamplingParams& params() const { return params_; }
  void AddOutput(std::int32_t token);

  struct Use {
    std::int32_t outputs = 0;
    bool in_prompt = false;
  };
  /// Empty unless a penalty asks for it.
  const std::unordered_map<std::int32_t, Use>& used() const { return used_; }
  bool penalises() const { return penalises_; }
  /// What it gives depends on tokens that AddOutput brought.
  bool remembers() const {
    return penalises_ || !params_.bad_words.empty() || params_.dry_multiplier > 0;
  }
  /// Prompt and output; empty unless repetitions are looked for.
  std::span<const std::int32_t> history() const { return history_; }

  /// Tokens that must not come at `position`, as long as others can: those that would complete a
  /// bad word, and end tokens before min_tokens.
  void ListBans(std::int64_t position, std::vector<std::int32_t>* bans) const;

 private:
  spec::SamplingParams params_;
  bool penalises_ = false;
  std::int64_t num_prompt_ = 0;
  std::vector<std::int32_t> outputs_;  // kept when there are bad words
  std::vector<std::int32_t> history_;
  std::unordered_map<std::int32_t, Use> used_;
};

/// Uniform in [0, 1): the number of (seed, position).
double RandomAt(std::uint64_t seed, std::int64_t position);

/// Token for `position`. Order: logprobs from the raw logits; then `mask` (null: none) and
/// allowed_tokens, logit_bias, DRY, repetition (prompt and output), presence and frequency (output
/// only), bans; then greedy at temperature 0, else temperature, top_k, typical_p, top_p, min_p, xtc
/// (or the order that `samplers` gives) and the draw.
/// Fills token, logprob, rank and top of `out`; token -1 when the row holds NaN or an infinity, or
/// nothing is allowed. `logits` is scratch during the call and has its old values afterwards.
void SampleToken(std::span<float> logits,
                 const SamplingState& state,
                 std::int64_t position,
                 const spec::TokenMask* mask,
                 spec::SampledToken* out);

/// Logprob, rank and best `top` of a given token; token -1 when the row holds NaN or an infinity.
void ScoreToken(std::span<const float> logits,
                std::int32_t token,
                std::int32_t top,
                spec::SampledToken* out);

}  // namespace inferd::model
