// SPDX-License-Identifier: Apache-2.0
// How the next token is chosen. The numeric limits of every field are in spec/limits.h.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace inferd::spec {

/// A step that narrows the candidates or scales them; see SamplingParams::samplers.
enum class SamplerKind : std::uint8_t { kTemperature, kTopK, kTypicalP, kTopP, kMinP, kXtc };

struct SamplingParams {
  double temperature = 1;  // 0: greedy, ties to the lowest id
  double top_p = 1;
  double min_p = 0;
  std::int32_t top_k = 0;         // 0: all
  double repetition_penalty = 1;  // over prompt and output
  double presence_penalty = 0;    // over output only
  double frequency_penalty = 0;   // over output only
  std::vector<std::pair<std::int32_t, float>> logit_bias;
  double typical_p = 1;  // locally typical sampling; 1: off
  /// With this probability the tokens above the threshold are left out, but for the least likely of
  /// them (exclude top choices); 0: off.
  double xtc_probability = 0;
  double xtc_threshold = 0.1;
  /// The temperature follows the candidates' entropy, between temperature - range and temperature +
  /// range; 0: off.
  double dynatemp_range = 0;
  double dynatemp_exponent = 1;
  /// A token that would prolong a repetition of `dry_allowed_length` or more tokens loses
  /// dry_multiplier * dry_base^(length - dry_allowed_length); 0: off.
  double dry_multiplier = 0;
  double dry_base = 1.75;
  std::int32_t dry_allowed_length = 2;
  std::int32_t dry_last_n = -1;            // looks at this many of the last tokens; -1: all
  std::vector<std::int32_t> dry_breakers;  // no repetition reaches over these; ascending
  /// In this order; empty: temperature, top_k, typical_p, top_p, min_p, xtc.
  std::vector<SamplerKind> samplers;
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
