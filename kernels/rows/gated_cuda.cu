// SPDX-License-Identifier: Apache-2.0
// y += sigmoid(gate[row]) * x, one thread per value, the grid's second axis per row. Bytes: three
// floats per value.
#include "kernels/cuda/shim.cuh"
#include "kernels/rows/gated_cuda.h"

namespace inferd::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) AddGatedKernel(float* y,
                                                           std::int64_t ldy,
                                                           const float* x,
                                                           std::int64_t ldx,
                                                           const float* gate,
                                                           int rows,
                                                           int n) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= n) {
    return;
  }
  for (int row = static_cast<int>(blockIdx.y); row < rows; row += static_cast<int>(gridDim.y)) {
    y[row * ldy + i] += x[row * ldx + i] / (1.0F + expf(-gate[row]));
  }
}

}  // namespace

Status AddGated(float* y,
                std::int64_t ldy,
                const float* x,
                std::int64_t ldx,
                const float* gate,
                std::int64_t rows,
                std::int64_t n,
                Stream stream) {
  if (rows == 0 || n == 0) {
    return Status::kOk;
  }
  constexpr std::int64_t kMaxGridRows = 65535;
  const dim3 grid(static_cast<unsigned>((n + kThreads - 1) / kThreads),
                  static_cast<unsigned>(rows < kMaxGridRows ? rows : kMaxGridRows));
  return LAUNCH_KERNEL(AddGatedKernel,
                       grid,
                       dim3(kThreads),
                       0,
                       stream,
                       y,
                       ldy,
                       x,
                       ldx,
                       gate,
                       static_cast<int>(rows),
                       static_cast<int>(n));
}

}  // namespace inferd::kernels::cuda
