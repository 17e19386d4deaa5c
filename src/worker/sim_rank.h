// SPDX-License-Identifier: Apache-2.0
// A rank without a device: a step takes the time that the cost model predicts for one, and its
// tokens are the prompt's, over and over. For the leader, the front end and faults at a scale that
// is not at hand.
#pragma once

#include "inferd/result.h"
#include "model/rank.h"

#include <memory>

namespace inferd::worker {

/// For request.device "sim:PROFILE[/MODEL]". Joins the real groups: a peer that dies or hangs is
/// seen as with real ranks.
Result<std::unique_ptr<model::Rank>> MakeSimRank(const spec::LoadRequest& request);

}  // namespace inferd::worker
