// SPDX-License-Identifier: Apache-2.0
// Waiting for a stream by asking again and again: a call that waits in the runtime has no deadline.
#pragma once

#include <cuda_runtime.h>

#include <chrono>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

/// An aborted collective leaves the stream at once; what is behind it is a step at most. Below the
/// leader's RankSetOptions::abort_deadline_ms, which ends a worker that does not come to rest.
inline constexpr std::chrono::milliseconds kDrainFor{1'500};

/// Between two looks of a wait that began at `began`: yields at first (most steps are short), then
/// sleeps.
void PauseBetweenLooks(std::chrono::steady_clock::time_point began);

/// The stream's state once it is done or has failed; cudaErrorNotReady: it was not done `within`
/// that time. Any thread.
cudaError_t AwaitStream(cudaStream_t stream, std::chrono::milliseconds within);

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
