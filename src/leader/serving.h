// SPDX-License-Identifier: Apache-2.0
// Which phases of a replica or of the whole server take requests, and what is said in the others.
#pragma once

#include "inferd/result.h"
#include "leader/inference_service.h"

namespace inferd::leader {

/// kUnavailable in a phase that takes no requests, with its word in `refusal` (null: not wanted).
Result<> CheckServing(Phase phase, Refusal* refusal);

}  // namespace inferd::leader
