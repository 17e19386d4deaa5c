// SPDX-License-Identifier: Apache-2.0
// The samplers in the order a request asks for, on a list of candidates: for requests that use more
// than temperature, top_k, top_p and min_p in their usual order, which model/sampler.cc does
// faster.
#pragma once

#include "spec/sampling_params.h"

#include <cstdint>
#include <span>

namespace inferd::model {

// Below this a division by the temperature leaves the float range; it is greedy for every real
// distribution.
inline constexpr double kGreedyTemperature = 1e-5;

/// The request asks for something that only the chain does.
bool UsesChain(const spec::SamplingParams& params);

/// The token for `position`. `lowest`: logits below are not allowed. `peak`: the largest logit.
std::int32_t DrawFromChain(std::span<const float> logits,
                           const spec::SamplingParams& params,
                           float peak,
                           float lowest,
                           std::int64_t position);

}  // namespace inferd::model
