// SPDX-License-Identifier: Apache-2.0
// StepPacer: how many tokens of prompts a step takes beside decodes, so that a long prompt does not
// stretch the time between two tokens of everybody else. Learns from the steps what a token costs.
#pragma once

#include <cstdint>

namespace inferd::engine {

struct StepPacerOptions {
  /// Time between two tokens of a stream that prompts may stretch it to; 0: no bound.
  std::int64_t target_itl_ns = 0;
  std::int32_t num_stages = 1;  // steps that a stream waits for its next token
  std::int64_t least = 32;      // tokens of prompts that a step may take in any case
};

/// Owned by the scheduler, used on its thread; O(1), no I/O.
class StepPacer {
 public:
  explicit StepPacer(const StepPacerOptions& options) : options_(options) {}

  /// A step kept the devices busy for `busy_ns`, for one token each of `decodes` rows (with what
  /// they guess ahead) and `prompt_tokens` tokens of prompts.
  void Learn(std::int64_t decodes, std::int64_t prompt_tokens, std::int64_t busy_ns);

  /// The most tokens of prompts for a step with decodes. They get the time that decodes leave of
  /// the target, but at least as long as the decodes themselves, so that prompts advance where the
  /// target cannot be held. Without a target, or before the first prompt: no bound.
  std::int64_t MostPromptTokens() const;

 private:
  const StepPacerOptions options_;
  double decode_ns_ = 0;  // of a step of decodes only; 0: none seen
  double token_ns_ = 0;   // of a prompt's token beside them; 0: none seen
};

}  // namespace inferd::engine
