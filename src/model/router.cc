// SPDX-License-Identifier: Apache-2.0
#include "model/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace inferd::model {
namespace {

// The k best of scores[0..n), best first.
void TopK(const float* scores, std::int64_t n, std::int64_t k, std::int32_t* chosen) {
  std::int64_t count = 0;
  for (std::int64_t e = 0; e < n; ++e) {
    const float score = scores[e];
    if (count == k && !(score > scores[chosen[k - 1]])) {
      continue;
    }
    std::int64_t at = count < k ? count : k - 1;
    for (; at > 0 && score > scores[chosen[at - 1]]; --at) {
      chosen[at] = chosen[at - 1];
    }
    chosen[at] = static_cast<std::int32_t>(e);
    count = std::min(count + 1, k);
  }
}

}  // namespace

void RouteTokens(const spec::MoeSpec& moe,
                 const float* logits,
                 std::int64_t rows,
                 std::int32_t* expert,
                 float* weight) {
  const std::int64_t n = moe.num_experts;
  const std::int64_t k = moe.top_k;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* scores =
        logits + row * n;  // both scores grow with the logit, so the order is that of the logits
    std::int32_t* chosen = expert + row * k;
    float* weights = weight + row * k;
    TopK(scores, n, k, chosen);
    const float peak = scores[chosen[0]];
    float total = 0;
    if (moe.score == spec::RouterScore::kSoftmax) {
      for (std::int64_t e = 0; e < n && moe.softmax_before_topk; ++e) {
        total += std::exp(scores[e] - peak);
      }
    }
    float sum = 0;
    for (std::int64_t i = 0; i < k; ++i) {
      const float logit = scores[chosen[i]];
      weights[i] = moe.score == spec::RouterScore::kSigmoid ? 1.0F / (1.0F + std::exp(-logit))
                                                            : std::exp(logit - peak);
      sum += weights[i];
    }
    const bool is_softmax = moe.score == spec::RouterScore::kSoftmax;
    const bool by_chosen = moe.renormalize || (is_softmax && !moe.softmax_before_topk);
    const float divisor = by_chosen ? sum : (is_softmax ? total : 1.0F);
    for (std::int64_t i = 0; i < k; ++i) {
      weights[i] = weights[i] / divisor * static_cast<float>(moe.routed_scale);
    }
  }
}

}  // namespace inferd::model
