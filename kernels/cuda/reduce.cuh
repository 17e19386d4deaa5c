// SPDX-License-Identifier: Apache-2.0
// Sums and maxima over a warp and a block. Every thread gets the result; the order of additions is
// fixed, so equal inputs give equal bits.
#pragma once

#include "kernels/cuda/shim.cuh"

namespace inferd::kernels::cuda {

DEVICE float WarpSum(float value) {
#pragma unroll
  for (int bits = 16; bits > 0; bits >>= 1) {
    value += __shfl_xor_sync(kFullMask, value, bits);
  }
  return value;
}

DEVICE float WarpMax(float value) {
#pragma unroll
  for (int bits = 16; bits > 0; bits >>= 1) {
    value = fmaxf(value, __shfl_xor_sync(kFullMask, value, bits));
  }
  return value;
}

/// `scratch` holds kThreads / 32 floats and may be used again after the next barrier.
template <int kThreads>
DEVICE float BlockSum(float value, float* scratch) {
  value = WarpSum(value);
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = value;
  }
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) {
    sum += scratch[i];
  }
  return sum;
}

template <int kThreads>
DEVICE float BlockMax(float value, float* scratch) {
  value = WarpMax(value);
  if (threadIdx.x % 32 == 0) {
    scratch[threadIdx.x / 32] = value;
  }
  __syncthreads();
  float top = scratch[0];
#pragma unroll
  for (int i = 1; i < kThreads / 32; ++i) {
    top = fmaxf(top, scratch[i]);
  }
  return top;
}

}  // namespace inferd::kernels::cuda
