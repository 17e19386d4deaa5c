// SPDX-License-Identifier: Apache-2.0
#include "model/logits.h"

#include "model/logit_passes.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace inferd::model {
namespace {

// Float partial sums go over to double after this many values.
constexpr std::size_t kBlock = 2048;

}  // namespace

Peak FindPeak(std::span<const float> logits) {
  Peak peak;
  float value = 0;
  if (!ChosenLogitPasses().peak(logits.data(), logits.size(), &value) || logits.empty()) {
    return peak;
  }
  peak.value = value;
  peak.token = static_cast<std::int32_t>(
      ChosenLogitPasses().next_at_least(logits.data(), 0, logits.size(), 0, 1, value));
  return peak;
}

double SumExp(std::span<const float> logits, float peak, float inverse_temperature) {
  double sum = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::size_t count = std::min(kBlock, logits.size() - begin);
    sum += static_cast<double>(
        ChosenLogitPasses().sum_exp(logits.data() + begin, count, peak, inverse_temperature));
  }
  return sum;
}

float ExpOf(float x) { return ChosenLogitPasses().exp(x); }

void Collect(std::span<const float> logits,
             float peak,
             float inverse_temperature,
             float cutoff,
             std::vector<Candidate>& out) {
  out.clear();
  const auto next = [&](std::size_t begin) {
    return ChosenLogitPasses().next_at_least(
        logits.data(), begin, logits.size(), peak, inverse_temperature, cutoff);
  };
  for (std::size_t i = next(0); i < logits.size(); i = next(i + 1)) {
    out.push_back({(logits[i] - peak) * inverse_temperature, static_cast<std::int32_t>(i)});
  }
}

std::int32_t TokenAtMass(std::span<const float> logits,
                         float peak,
                         float inverse_temperature,
                         double target) {
  double before = 0;
  std::int32_t last = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::size_t count = std::min(kBlock, logits.size() - begin);
    const double mass = static_cast<double>(
        ChosenLogitPasses().sum_exp(logits.data() + begin, count, peak, inverse_temperature));
    const bool is_last = begin + count == logits.size();
    if (before + mass <= target && !is_last) {
      before += mass;
      continue;
    }
    double sum = before;
    for (std::size_t i = begin; i < begin + count; ++i) {
      const float p = ExpOf((logits[i] - peak) * inverse_temperature);
      if (p > 0) {
        last = static_cast<std::int32_t>(i);
        sum += static_cast<double>(p);
        if (sum > target) {
          return last;
        }
      }
    }
    before += mass;
  }
  return last;
}

std::int32_t RankOf(std::span<const float> logits, std::int32_t token) {
  const auto index = static_cast<std::size_t>(token);
  std::int64_t above = 0;
  std::int64_t above_before = 0;
  std::int64_t equal = 0;
  std::int64_t equal_before = 0;
  ChosenLogitPasses().count(logits.data(), index, logits[index], &above_before, &equal_before);
  ChosenLogitPasses().count(logits.data(), logits.size(), logits[index], &above, &equal);
  return static_cast<std::int32_t>(1 + above + equal_before);
}

std::vector<spec::TokenLogprob> BestTokens(std::span<const float> logits,
                                           std::int32_t n,
                                           double log_sum) {
  const auto keep = static_cast<std::size_t>(
      std::clamp<std::int64_t>(n, 0, static_cast<std::int64_t>(logits.size())));
  std::vector<Candidate> best;  // a heap with the worst kept one in front
  best.reserve(keep + 1);
  std::size_t i = 0;
  for (; i < keep; ++i) {
    best.push_back({logits[i], static_cast<std::int32_t>(i)});
  }
  std::make_heap(best.begin(), best.end());
  while (keep > 0) {
    // Later ids replace the worst only when strictly larger.
    const float wanted = std::nextafter(best.front().z, std::numeric_limits<float>::infinity());
    i = ChosenLogitPasses().next_at_least(logits.data(), i, logits.size(), 0, 1, wanted);
    if (i == logits.size()) {
      break;
    }
    std::pop_heap(best.begin(), best.end());
    best.back() = {logits[i], static_cast<std::int32_t>(i)};
    std::push_heap(best.begin(), best.end());
    ++i;
  }
  std::sort_heap(best.begin(), best.end());
  std::vector<spec::TokenLogprob> result;
  result.reserve(best.size());
  for (const Candidate& candidate : best) {
    result.push_back(
        {candidate.token, static_cast<float>(static_cast<double>(candidate.z) - log_sum)});
  }
  return result;
}

}  // namespace inferd::model
