// SPDX-License-Identifier: Apache-2.0
// How the next token is chosen. The numeric limits of every field are in spec/limits.h.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace inferd::spec {

struct SamplingParams {
  double temperature = 1;  // 0: greedy, ties to the lowest id
  double top_p = 1;
  double min_p = 0;
  std::int32_t top_k = 0;         // 0: all
  double repetition_penalty = 1;  // over prompt and output
  double presence_penalty = 0;    // over output only
  double frequency_penalty = 0;   // over output only
  std::vector<std::pair<std::int32_t, float>> logit_bias;
  std::uint64_t seed = 0;             // counter-based: (seed, position) gives the random number
  std::int32_t logprobs = -1;         // -1: none; n: chosen token's and the n best
  std::int32_t prompt_logprobs = -1;  // the same for prompt tokens
  /// Only these may be sampled; empty: all. Ascending.
  std::vector<std::int32_t> allowed_tokens;
  /// None of these may be completed in the output: its last token is not sampled. Like end tokens
  /// before `min_tokens`, they give way when nothing else is left.
  std::vector<std::vector<std::int32_t>> bad_words;
  std::int64_t min_tokens = 0;           // `end_tokens` are not sampled before this many
  std::vector<std::int32_t> end_tokens;  // empty when min_tokens is 0
};

}  // namespace inferd::spec
