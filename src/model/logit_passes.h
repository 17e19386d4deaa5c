// SPDX-License-Identifier: Apache-2.0
// The inner loops over a row of logits, compiled for several instruction sets of which one is
// chosen at start. All give the same bits: the same operations on 8 lanes, no fused multiply-add.
#pragma once

#include <cstddef>
#include <cstdint>

namespace inferd::model {

struct LogitPasses {
  /// Largest value; false when one is NaN or infinite.
  bool (*peak)(const float* logits, std::size_t count, float* largest);
  /// Sum of exp((logit - peak) * inverse_temperature) in float; for blocks of a few thousand
  /// values.
  float (*sum_exp)(const float* logits, std::size_t count, float peak, float inverse_temperature);
  /// First i >= begin with (logit - peak) * inverse_temperature >= cutoff; count if there is none.
  std::size_t (*next_at_least)(const float* logits,
                               std::size_t begin,
                               std::size_t count,
                               float peak,
                               float inverse_temperature,
                               float cutoff);
  /// How many values are above, and how many equal to, `value`.
  void (*count)(const float* logits,
                std::size_t count,
                float value,
                std::int64_t* above,
                std::int64_t* equal);
  /// exp(x) for x <= 0, as in sum_exp.
  float (*exp)(float x);
};

const LogitPasses& ChosenLogitPasses();
/// Every set this machine can run; for the test that compares them.
std::size_t AllLogitPasses(const LogitPasses* out[3]);

}  // namespace inferd::model
