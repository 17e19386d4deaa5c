// SPDX-License-Identifier: Apache-2.0
// What every launch function takes and returns. No CUDA header is needed to call one: the handle is
// CUDA's own stream type by its forward declaration, and a status is a cudaError_t's number.
#pragma once

struct CUstream_st;

namespace inferd::kernels::cuda {

/// A cudaStream_t; null is the default stream.
using Stream = ::CUstream_st*;

/// 0 is success, anything else a cudaError_t. A launch function queues its work and returns; what
/// goes wrong on the device is seen at the next synchronisation.
enum class [[nodiscard]] Status : int { kOk = 0, kInvalidValue = 1 };

}  // namespace inferd::kernels::cuda
