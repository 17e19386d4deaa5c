// SPDX-License-Identifier: Apache-2.0
// Passes over one row of logits: largest value, sum of exponentials, candidates, best n.
// Single-threaded and in a fixed order, so that a row's numbers depend on nothing but the row.
#pragma once

#include "spec/step.h"

#include <cstdint>
#include <span>
#include <vector>

namespace inferd::model {

/// Largest logit; ties go to the lowest id.
struct Peak {
  std::int32_t token = -1;  // -1: the row holds NaN or an infinity
  float value = 0;
};
Peak FindPeak(std::span<const float> logits);

/// Sum over the row of exp((logit - peak) * inverse_temperature); at least 1.
double SumExp(std::span<const float> logits, float peak, float inverse_temperature);

/// exp(x) for x <= 0 with the very bits SumExp adds up.
float ExpOf(float x);

struct Candidate {
  float z = 0;  // (logit - peak) * inverse_temperature
  std::int32_t token = 0;
};
/// Descending; ties go to the lowest id.
inline bool operator<(const Candidate& a, const Candidate& b) {
  return a.z != b.z ? a.z > b.z : a.token < b.token;
}

/// Replaces `out` by all tokens with z >= cutoff, in id order.
void Collect(std::span<const float> logits,
             float peak,
             float inverse_temperature,
             float cutoff,
             std::vector<Candidate>& out);

/// First token at which the running sum of exp(z), in id order, exceeds `target`; the last one with
/// any mass if none does.
std::int32_t TokenAtMass(std::span<const float> logits,
                         float peak,
                         float inverse_temperature,
                         double target);

/// 1 + the number of tokens before `token` in descending order (ties: lowest id first).
std::int32_t RankOf(std::span<const float> logits, std::int32_t token);

/// The n best tokens, descending, with logit - log_sum as logprob.
std::vector<spec::TokenLogprob> BestTokens(std::span<const float> logits,
                                           std::int32_t n,
                                           double log_sum);

}  // namespace inferd::model
