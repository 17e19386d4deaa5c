// SPDX-License-Identifier: Apache-2.0
// Which experts a token goes to, and with what weights.
#pragma once

#include "spec/model_spec.h"

#include <cstdint>

namespace inferd::model {

/// logits [rows, num_experts] -> expert, weight [rows, top_k], best first; ties go to the lowest
/// expert.
void RouteTokens(const spec::MoeSpec& moe,
                 const float* logits,
                 std::int64_t rows,
                 std::int32_t* expert,
                 float* weight);

}  // namespace inferd::model
