// SPDX-License-Identifier: Apache-2.0
// One block per row: RMSNorm y = x / sqrt(mean(x^2) + eps) * w, optionally with the residual added
// first, and LayerNorm. Bytes: x read twice (the second time from the caches), y written; with the
// residual `add` read and x written too.
#include "kernels/cuda/reduce.cuh"
#include "kernels/rows/rows_cuda.h"

namespace inferd::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <bool kResidual>
__global__ void __launch_bounds__(kThreads) RmsNormKernel(float* x_rows,
                                                          std::int64_t ldx,
                                                          const float* add,
                                                          std::int64_t ldadd,
                                                          const float* weight,
                                                          float eps,
                                                          int k,
                                                          float* y_rows,
                                                          std::int64_t ldy) {
  SHARED_ARRAY(float, scratch, kThreads / 32);
  float* x = x_rows + blockIdx.x * ldx;
  float* y = y_rows + blockIdx.x * ldy;
  const int thread = static_cast<int>(threadIdx.x);
  float squares = 0;
  for (int i = thread; i < k; i += kThreads) {
    float value = x[i];
    if (kResidual) {
      value += add[blockIdx.x * ldadd + i];
      x[i] = value;
    }
    squares = fmaf(value, value, squares);
  }
  const float sum = BlockSum<kThreads>(squares, scratch);
  const float inverse = 1.0F / sqrtf(sum / static_cast<float>(k) + eps);
  // Each thread reads back only what it wrote itself: no barrier is needed.
  for (int i = thread; i < k; i += kThreads) {
    y[i] = weight != nullptr ? x[i] * inverse * weight[i] : x[i] * inverse;
  }
}

__global__ void __launch_bounds__(kThreads) LayerNormKernel(const float* x_rows,
                                                            std::int64_t ldx,
                                                            const float* weight,
                                                            const float* bias,
                                                            float eps,
                                                            int k,
                                                            float* y_rows,
                                                            std::int64_t ldy) {
  SHARED_ARRAY(float, sum_scratch, kThreads / 32);
  SHARED_ARRAY(float, square_scratch, kThreads / 32);
  const float* x = x_rows + blockIdx.x * ldx;
  float* y = y_rows + blockIdx.x * ldy;
  const int thread = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int i = thread; i < k; i += kThreads) {
    sum += x[i];
  }
  const float mean = BlockSum<kThreads>(sum, sum_scratch) / static_cast<float>(k);
  float squares = 0;
  for (int i = thread; i < k; i += kThreads) {
    squares = fmaf(x[i] - mean, x[i] - mean, squares);
  }
  const float variance = BlockSum<kThreads>(squares, square_scratch) / static_cast<float>(k);
  const float inverse = 1.0F / sqrtf(variance + eps);
  for (int i = thread; i < k; i += kThreads) {
    const float normed = (x[i] - mean) * inverse * weight[i];
    y[i] = bias != nullptr ? normed + bias[i] : normed;
  }
}

}  // namespace

Status RmsNorm(const float* x,
               std::int64_t ldx,
               const float* weight,
               float eps,
               std::int64_t rows,
               std::int64_t k,
               float* y,
               std::int64_t ldy,
               Stream stream) {
  // Without a residual x is only read.
  return AddRmsNorm(const_cast<float*>(x), ldx, nullptr, 0, weight, eps, rows, k, y, ldy, stream);
}

Status AddRmsNorm(float* x,
                  std::int64_t ldx,
                  const float* add,
                  std::int64_t ldadd,
                  const float* weight,
                  float eps,
                  std::int64_t rows,
                  std::int64_t k,
                  float* y,
                  std::int64_t ldy,
                  Stream stream) {
  if (rows == 0) {
    return Status::kOk;
  }
  const auto kernel = add != nullptr ? &RmsNormKernel<true> : &RmsNormKernel<false>;
  return LAUNCH_KERNEL(kernel,
                       dim3(static_cast<unsigned>(rows)),
                       dim3(kThreads),
                       0,
                       stream,
                       x,
                       ldx,
                       add,
                       ldadd,
                       weight,
                       eps,
                       static_cast<int>(k),
                       y,
                       ldy);
}

Status LayerNorm(const float* x,
                 std::int64_t ldx,
                 const float* weight,
                 const float* bias,
                 float eps,
                 std::int64_t rows,
                 std::int64_t k,
                 float* y,
                 std::int64_t ldy,
                 Stream stream) {
  if (rows == 0) {
    return Status::kOk;
  }
  return LAUNCH_KERNEL(LayerNormKernel,
                       dim3(static_cast<unsigned>(rows)),
                       dim3(kThreads),
                       0,
                       stream,
                       x,
                       ldx,
                       weight,
                       bias,
                       eps,
                       static_cast<int>(k),
                       y,
                       ldy);
}

}  // namespace inferd::kernels::cuda
