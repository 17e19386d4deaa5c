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
bool IsDeviceMemory(const void* pointer, std::size_t bytes);
/// Of cudaMallocHost or cudaHostRegister.
bool IsPinnedMemory(const void* pointer, std::size_t bytes);
/// So many kernels are launched: an error when that is where SetFaultAfterLaunches' fault is.
cudaError_t CountLaunches(int launches);
/// True: a kernel launched on `stream` is captured, and has been counted there.
bool CountCaptured(cudaStream_t stream);

}  // namespace inferd::simt
