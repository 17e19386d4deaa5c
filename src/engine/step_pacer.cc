// SPDX-License-Identifier: Apache-2.0
#include "engine/step_pacer.h"

#include <algorithm>
#include <limits>

namespace inferd::engine {
namespace {

// What becomes slower is believed faster than what becomes quicker: late tokens are what is to be
// avoided, and a chunk costs more the further it is into its prompt.
constexpr double kSlower = 0.5;
constexpr double kQuicker = 0.2;

void Follow(double seen, double* value) {
  *value = *value == 0 ? seen : *value + (seen > *value ? kSlower : kQuicker) * (seen - *value);
}

}  // namespace

void StepPacer::Learn(std::int64_t decodes, std::int64_t prompt_tokens, std::int64_t busy_ns) {
  if (options_.target_itl_ns == 0 || busy_ns <= 0) {
    return;
  }
  const auto busy = static_cast<double>(busy_ns);
  if (prompt_tokens == 0) {
    if (decodes > 0) {
      Follow(busy, &decode_ns_);
    }
    return;
  }
  // The rest of a prompt says little: most of such a step is reading weights.
  if (prompt_tokens < options_.least) {
    return;
  }
  // Never so little that the next step takes many times as many.
  const double left = decodes == 0 ? busy : std::max(busy - decode_ns_, busy / 4);
  Follow(left / static_cast<double>(prompt_tokens), &token_ns_);
}

std::int64_t StepPacer::MostPromptTokens() const {
  if (token_ns_ == 0) {
    return std::numeric_limits<std::int64_t>::max();
  }
  const double target =
      static_cast<double>(options_.target_itl_ns) / static_cast<double>(options_.num_stages);
  const double tokens = std::max(target - decode_ns_, decode_ns_) / token_ns_;
  return std::max(options_.least, static_cast<std::int64_t>(std::min(tokens, 1e9)));
}

}  // namespace inferd::engine
