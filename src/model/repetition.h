// SPDX-License-Identifier: Apache-2.0
// DRY ("don't repeat yourself"): which tokens would prolong a repetition, and what that costs them.
#pragma once

#include "spec/sampling_params.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace inferd::model {

/// Appends (token, penalty) for each token that would make the end of `tokens` (prompt and output)
/// repeat dry_allowed_length or more tokens from before; each token once. Linear in the number of
/// tokens looked at.
void ListRepetitions(std::span<const std::int32_t> tokens,
                     const spec::SamplingParams& params,
                     std::vector<std::pair<std::int32_t, float>>* penalties);

}  // namespace inferd::model
