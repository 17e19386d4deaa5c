// SPDX-License-Identifier: Apache-2.0
// From a JoinRequest to the communicators of one rank.
#pragma once

#include "comm/communicator.h"
#include "inferd/result.h"
#include "model/rank.h"
#include "spec/worker_config.h"

#include <string>

namespace inferd::worker {

/// Joins the groups that `rank` is a member of, always in the order tp, ep, pp, ids, which cannot
/// deadlock: every group is joined with a deadline and members of a later group wait at most that
/// long. `listener` may be null when all groups are of one host. Groups that carry activations use
/// NCCL on `queue`, the rank's device, as `backend` says; null: the host's memory is the device's.
Result<model::RankComms> JoinGroups(const spec::JoinRequest& join,
                                    int rank,
                                    comm::TcpListener* listener,
                                    const std::string& secret,
                                    spec::CommBackend backend,
                                    tensor::DeviceQueue* queue);

}  // namespace inferd::worker
