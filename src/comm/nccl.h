// SPDX-License-Identifier: Apache-2.0
// A group on device memory: NCCL for what lies there, on top of a communicator of the same ranks on
// host memory. That one carries NCCL's unique id, stays for what the host has in hand (counts,
// tables), and is how a peer's death is noticed: NCCL itself waits for a dead peer for ever.
#pragma once

#include "comm/communicator.h"
#include "inferd/result.h"
#include "tensor/device_queue.h"

#include <memory>

namespace inferd::comm {

/// Adds device collectives to `host`, a group joined with the same options. Collective over the
/// group, under options.join_deadline. Where NCCL cannot serve the ranks (it is absent or too old
/// at one, of different versions, or two ranks share a GPU) the answer is `host` as it was, with a
/// warning at rank 0; with `required` it is kUnavailable at all ranks, which names the rank, its
/// host and why. kInvalidArgument when a rank is a MIG slice: slices have no peer access. `queue`
/// must outlive the group.
Result<std::unique_ptr<Communicator>> JoinNccl(const GroupOptions& options,
                                               std::unique_ptr<Communicator> host,
                                               tensor::DeviceQueue& queue,
                                               bool required);

}  // namespace inferd::comm
