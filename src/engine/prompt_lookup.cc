// SPDX-License-Identifier: Apache-2.0
#include "engine/prompt_lookup.h"

#include <algorithm>
#include <cstddef>

namespace inferd::engine {
namespace {

constexpr double kWeightOfOne = 0.05;

}  // namespace

void LookUp(std::span<const std::int32_t> tokens,
            const PromptLookupOptions& options,
            std::int64_t most,
            std::vector<std::int32_t>* draft) {
  const auto size = static_cast<std::int64_t>(tokens.size());
  if (most <= 0 || size <= options.min_ngram) {
    return;
  }
  const std::int32_t* const data = tokens.data();
  const std::int32_t last = data[size - 1];
  std::int64_t best_end = -1;  // position after the match
  std::int64_t best_length = options.min_ngram - 1;
  const std::int64_t oldest = std::max<std::int64_t>(0, size - kMaxLookback);
  for (std::int64_t end = size - 2; end >= oldest && best_length < options.max_ngram; --end) {
    if (data[end] != last) {
      continue;
    }
    std::int64_t length = 1;
    while (length < options.max_ngram && end - length >= oldest &&
           data[end - length] == data[size - 1 - length]) {
      ++length;
    }
    if (length > best_length) {
      best_length = length;
      best_end = end + 1;
    }
  }
  if (best_end >= 0) {
    // A match just before the end repeats with its period: go on in what was guessed.
    for (std::int64_t i = 0; i < most; ++i) {
      const std::int64_t from = best_end + i;
      draft->push_back(from < size
                           ? data[from]
                           : (*draft)[draft->size() - static_cast<std::size_t>(size - best_end)]);
    }
  }
}

void GuessRecord::Take(std::int32_t guessed, std::int32_t token) {
  share_ += kWeightOfOne * ((guessed == token ? 1.0 : 0.0) - share_);
}

}  // namespace inferd::engine
