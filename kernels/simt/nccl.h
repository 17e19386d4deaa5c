// SPDX-License-Identifier: Apache-2.0
// NCCL on emulated devices, for the part of its interface that inferd uses: ranks are threads or
// processes of one host and meet in shared memory. Communicators are non-blocking; a collective is
// work of its stream that is done when the peers have come. As on NVLink, a peer's death is not
// noticed: its collectives wait until their communicator is aborted. Misuse that would hang or
// corrupt on a device (calls that do not match, host pointers, a call while the last one is still
// under way) is an error here.
#pragma once

#include <cstdint>

namespace inferd::simt {

/// The function called `name` in NCCL's C interface; null where it is left out here.
void* FindNccl(const char* name);

/// From now on every communicator of this process reports `result` (an ncclResult_t) as its
/// asynchronous error; 0 ends that.
void SetNcclError(int result);

/// Collectives and groups of messages that this process has put into its streams or their
/// recordings.
std::uint64_t CountNcclCalls();

}  // namespace inferd::simt
