// SPDX-License-Identifier: Apache-2.0
// Waiting for a stream by asking again and again: a call that waits in the runtime has no deadline.
// And what is left undone when a stream does not end: calls that free wait for it in the runtime.
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
/// that time, and ADeviceHangs from then on. Any thread.
cudaError_t AwaitStream(cudaStream_t stream, std::chrono::milliseconds within);

/// True once a stream of this process was given up: its device may still read whatever it was
/// given, and freeing waits for it. So nothing is freed from then on but by the process's end,
/// which must come soon: no device of it is to be used. Any thread.
bool ADeviceHangs();
/// cudaFree, cudaFreeHost and cudaIpcCloseMemHandle, unless ADeviceHangs. Any thread.
void FreeUnlessHung(void* device_memory);
void FreeHostUnlessHung(void* pinned_memory);
void CloseUnlessHung(void* peers_memory);

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
