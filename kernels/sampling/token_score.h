// SPDX-License-Identifier: Apache-2.0
// What a row of logits says of one of its tokens, and which tokens it likes best. The logarithm is
// left to the host, so that logprobs have the same bits wherever the row was read.
#pragma once

#include <cstdint>

namespace inferd::kernels {

/// The most of the best tokens that can be asked for.
inline constexpr std::int32_t kMaxTop = 20;

/// logprob of a logit x of the row: x - (peak + log(sum_exp)).
struct TokenScore {
  double sum_exp = 0;       // of exp(logit - peak) over the row
  float peak = 0;           // the largest logit
  float logit = 0;          // of the token
  std::int32_t token = -1;  // -1: there is none, or the row holds NaN or an infinity
  std::int32_t rank = 0;    // 1 + how many come before it; the lower id comes first among equals
  std::int32_t top[kMaxTop] = {};  // the best ids in that order; -1 after the last
  float top_logits[kMaxTop] = {};
};

}  // namespace inferd::kernels
