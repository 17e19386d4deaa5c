// SPDX-License-Identifier: Apache-2.0
#include "model/repetition.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

namespace inferd::model {
namespace {

// Beyond any logit, and finite.
constexpr double kMostPenalty = 1e6;

}  // namespace

void ListRepetitions(std::span<const std::int32_t> tokens,
                     const spec::SamplingParams& params,
                     std::vector<std::pair<std::int32_t, float>>* penalties) {
  if (params.dry_last_n >= 0) {
    tokens = tokens.last(std::min(tokens.size(), static_cast<std::size_t>(params.dry_last_n)));
  }
  const std::size_t size = tokens.size();
  const auto allowed = static_cast<std::size_t>(std::max(params.dry_allowed_length, 1));
  const auto back = [&](std::size_t i) { return tokens[size - 1 - i]; };  // from the end
  std::size_t longest = 0;  // a repetition does not reach over a breaker
  while (longest < size && !std::ranges::binary_search(params.dry_breakers, back(longest))) {
    ++longest;
  }
  if (longest < allowed) {
    return;
  }
  // lengths[i]: how many tokens before and at back(i) equal those at the end (Z algorithm).
  thread_local std::vector<std::size_t> lengths;
  thread_local std::unordered_map<std::int32_t, std::size_t> repeated;
  lengths.assign(size, 0);
  repeated.clear();
  std::size_t left = 0;
  std::size_t right = 0;
  for (std::size_t i = 1; i < size; ++i) {
    std::size_t length = i < right ? std::min(right - i, lengths[i - left]) : 0;
    while (i + length < size && back(length) == back(i + length)) {
      ++length;
    }
    lengths[i] = length;
    if (i + length > right) {
      left = i;
      right = i + length;
    }
    length = std::min(length, longest);
    if (length >= allowed) {
      std::size_t& most = repeated[back(i - 1)];
      most = std::max(most, length);
    }
  }
  for (const auto& [token, length] : repeated) {
    const double penalty =
        params.dry_multiplier * std::pow(params.dry_base, static_cast<double>(length - allowed));
    penalties->emplace_back(token, static_cast<float>(std::min(penalty, kMostPenalty)));
  }
}

}  // namespace inferd::model
