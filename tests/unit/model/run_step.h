// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/rank.h"

#include <optional>

namespace inferd::model {

/// The whole life of a step, with nothing else under way.
inline Result<std::optional<spec::StepResult>> RunStep(Rank& rank, const spec::StepPlan& plan) {
  INFERD_TRY(rank.Begin(plan));
  return rank.Finish();
}

}  // namespace inferd::model
