// SPDX-License-Identifier: Apache-2.0
// What the memory and the stream half of the emulated runtime share.
#pragma once

#include "kernels/simt/runtime_api.h"

#include <cstddef>

namespace inferd::simt {

/// Remembers `error` for cudaGetLastError and returns it.
cudaError_t Keep(cudaError_t error);
/// The calling thread's device: missing, failed for good, or fine.
cudaError_t DeviceState();
inline constexpr std::size_t kPageBytes = 4096;
/// Bytes of the device memory that begins at `pointer`; 0: none does. From kPageBytes up it has its
/// pages for itself.
std::size_t AllocationAt(const void* pointer);
/// Comes before what is at `pointer` is freed: no other process opens it from now on.
void Unshare(void* pointer);
bool IsDeviceMemory(const void* pointer, std::size_t bytes);
/// Of cudaMallocHost or cudaHostRegister.
bool IsPinnedMemory(const void* pointer, std::size_t bytes);
/// So many kernels are launched: an error when that is where SetFaultAfterLaunches' fault is.
cudaError_t CountLaunches(int launches);
/// Comes before memory is freed, which waits for the device. Not for a stream that another thread
/// drives at this moment: its kernel may wait for a peer that only the calling thread can be.
void FinishIdleStreams();
/// A kernel that this thread runs waits for another device: asks whoever OnStall named for the
/// kernel's stream, and lets other threads run.
void HandleStall();
/// True: a kernel launched on `stream` is captured, and has been counted there.
bool CountCaptured(cudaStream_t stream);

}  // namespace inferd::simt
