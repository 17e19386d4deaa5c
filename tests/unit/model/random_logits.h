// SPDX-License-Identifier: Apache-2.0
// Logits for tests of samplers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace inferd::model {

inline std::vector<float> RandomLogits(std::size_t count, std::uint32_t seed, float spread = 3) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(count);
  std::generate(logits.begin(), logits.end(), [&] { return normal(generator); });
  return logits;
}

}  // namespace inferd::model
