// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu_route.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace inferd::ops {
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

void RouteTokens(const RouteTask& task) {
  const std::int64_t n = task.experts;
  const std::int64_t k = task.top_k;
  for (std::int64_t row = 0; row < task.rows; ++row) {
    const float* scores =
        task.logits +
        row * n;  // both scores grow with the logit, so the order is that of the logits
    std::int32_t* chosen = task.expert + row * k;
    float* weights = task.weight + row * k;
    TopK(scores, n, k, chosen);
    const float peak = scores[chosen[0]];
    float total = 0;
    if (!task.sigmoid) {
      for (std::int64_t e = 0; e < n && task.softmax_before_topk; ++e) {
        total += std::exp(scores[e] - peak);
      }
    }
    float sum = 0;
    for (std::int64_t i = 0; i < k; ++i) {
      const float logit = scores[chosen[i]];
      weights[i] = task.sigmoid ? 1.0F / (1.0F + std::exp(-logit)) : std::exp(logit - peak);
      sum += weights[i];
    }
    const bool is_softmax = !task.sigmoid;
    const bool by_chosen = task.renormalize || (is_softmax && !task.softmax_before_topk);
    const float divisor = by_chosen ? sum : (is_softmax ? total : 1.0F);
    for (std::int64_t i = 0; i < k; ++i) {
      weights[i] = weights[i] / divisor * task.routed_scale;
    }
  }
}

}  // namespace inferd::ops
