// SPDX-License-Identifier: Apache-2.0
// y = gate_fn(gate) * up and x += y, one thread per value, the grid's second axis per row. Bytes:
// three floats per value. x = cap * tanh(x / cap): two.
#include "kernels/cuda/shim.cuh"
#include "kernels/rows/gate_values.cuh"
#include "kernels/rows/rows_cuda.h"

namespace inferd::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <Gate kKind>
__global__ void __launch_bounds__(kThreads) GateMulKernel(const float* gate,
                                                          const float* up,
                                                          std::int64_t ld,
                                                          int rows,
                                                          int n,
                                                          float* y,
                                                          std::int64_t ldy) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= n) {
    return;
  }
  for (int row = static_cast<int>(blockIdx.y); row < rows; row += static_cast<int>(gridDim.y)) {
    y[row * ldy + i] = GateValue<kKind>(gate[row * ld + i]) * up[row * ld + i];
  }
}

__global__ void __launch_bounds__(kThreads)
    AddKernel(float* x, std::int64_t ldx, const float* y, std::int64_t ldy, int rows, int n) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i >= n) {
    return;
  }
  for (int row = static_cast<int>(blockIdx.y); row < rows; row += static_cast<int>(gridDim.y)) {
    x[row * ldx + i] += y[row * ldy + i];
  }
}

__global__ void __launch_bounds__(kThreads) SoftcapKernel(float* x, float cap, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) {
    x[i] = cap * tanhf(x[i] / cap);
  }
}

dim3 GridOf(std::int64_t rows, std::int64_t n) {
  constexpr std::int64_t kMaxGridRows = 65535;
  return {static_cast<unsigned>((n + kThreads - 1) / kThreads),
          static_cast<unsigned>(rows < kMaxGridRows ? rows : kMaxGridRows)};
}

}  // namespace

Status GateMul(Gate kind,
               const float* gate,
               const float* up,
               std::int64_t ld,
               std::int64_t rows,
               std::int64_t n,
               float* y,
               std::int64_t ldy,
               Stream stream) {
  if (rows == 0 || n == 0) {
    return Status::kOk;
  }
  const auto kernel = kind == Gate::kSilu       ? &GateMulKernel<Gate::kSilu>
                      : kind == Gate::kGeluTanh ? &GateMulKernel<Gate::kGeluTanh>
                                                : &GateMulKernel<Gate::kGelu>;
  return LAUNCH_KERNEL(kernel,
                       GridOf(rows, n),
                       dim3(kThreads),
                       0,
                       stream,
                       gate,
                       up,
                       ld,
                       static_cast<int>(rows),
                       static_cast<int>(n),
                       y,
                       ldy);
}

Status Add(float* x,
           std::int64_t ldx,
           const float* y,
           std::int64_t ldy,
           std::int64_t rows,
           std::int64_t n,
           Stream stream) {
  if (rows == 0 || n == 0) {
    return Status::kOk;
  }
  return LAUNCH_KERNEL(AddKernel,
                       GridOf(rows, n),
                       dim3(kThreads),
                       0,
                       stream,
                       x,
                       ldx,
                       y,
                       ldy,
                       static_cast<int>(rows),
                       static_cast<int>(n));
}

Status Softcap(float* x, float cap, std::int64_t count, Stream stream) {
  if (count == 0) {
    return Status::kOk;
  }
  const dim3 grid(static_cast<unsigned>((count + kThreads - 1) / kThreads));
  return LAUNCH_KERNEL(SoftcapKernel, grid, dim3(kThreads), 0, stream, x, cap, count);
}

}  // namespace inferd::kernels::cuda
