// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu_route.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

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

// scores[0..n) of all but the best groups become -infinity.
void KeepBestGroups(const RouteTask& task, std::vector<float>* scores) {
  const std::int64_t size = task.experts / task.groups;
  std::vector<float> best;
  for (std::int64_t g = 0; g < task.groups; ++g) {
    const auto begin = scores->begin() + g * size;
    std::vector<float> group(begin, begin + size);
    const auto count = std::min<std::int64_t>(task.group_best, size);
    std::partial_sort(group.begin(), group.begin() + count, group.end(), std::greater<>());
    best.push_back(std::accumulate(group.begin(), group.begin() + count, 0.0F));
  }
  std::vector<std::int32_t> kept(static_cast<std::size_t>(task.top_groups));
  TopK(best.data(), task.groups, task.top_groups, kept.data());
  for (std::int64_t e = 0; e < task.experts; ++e) {
    if (std::ranges::find(kept, static_cast<std::int32_t>(e / size)) == kept.end()) {
      (*scores)[static_cast<std::size_t>(e)] = -std::numeric_limits<float>::infinity();
    }
  }
}

// What the experts are chosen by.
void FillChoice(const RouteTask& task, const float* logits, std::vector<float>* choice) {
  choice->assign(logits, logits + task.experts);
  if (task.bias != nullptr || task.group_best > 1) {
    const float peak = *std::ranges::max_element(*choice);
    float total = 0;
    for (const float logit : *choice) {
      total += std::exp(logit - peak);
    }
    for (std::size_t e = 0; e < choice->size(); ++e) {
      float& score = (*choice)[e];
      score = task.sigmoid ? 1.0F / (1.0F + std::exp(-score)) : std::exp(score - peak) / total;
      score += task.bias != nullptr ? task.bias[e] : 0.0F;
    }
  }
  if (task.groups > 1) {
    KeepBestGroups(task, choice);
  }
}

}  // namespace

void RouteTokens(const RouteTask& task) {
  const std::int64_t n = task.experts;
  const std::int64_t k = task.top_k;
  std::vector<float> choice;
  for (std::int64_t row = 0; row < task.rows; ++row) {
    const float* scores =
        task.logits +
        row * n;  // both scores grow with the logit, so the order is that of the logits
    std::int32_t* chosen = task.expert + row * k;
    float* weights = task.weight + row * k;
    if (task.bias == nullptr && task.groups == 1) {
      TopK(scores, n, k, chosen);
    } else {
      FillChoice(task, scores, &choice);
      TopK(choice.data(), n, k, chosen);
    }
    const float peak = *std::max_element(scores, scores + n);
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
