// SPDX-License-Identifier: Apache-2.0
// Arithmetic of logits with the host's bits (model/logit_passes): every step rounds, nothing is
// fused.
#pragma once

#include "kernels/cuda/shim.cuh"

namespace inferd::kernels::cuda {

/// exp(x) for x <= 0.
DEVICE float ExpOf(float x) {
  if (!(x >= -87.0F)) {
    return 0;
  }
  const int n = static_cast<int>(__fsub_rn(__fmul_rn(x, 1.44269504F), 0.5F));
  const auto whole = static_cast<float>(n);
  const float r =
      __fsub_rn(__fsub_rn(x, __fmul_rn(whole, 0.693359375F)), __fmul_rn(whole, -2.12194440e-4F));
  float p = 1.9875691500e-4F;
  p = __fadd_rn(__fmul_rn(p, r), 1.3981999507e-3F);
  p = __fadd_rn(__fmul_rn(p, r), 8.3334519073e-3F);
  p = __fadd_rn(__fmul_rn(p, r), 4.1665795894e-2F);
  p = __fadd_rn(__fmul_rn(p, r), 1.6666665459e-1F);
  p = __fadd_rn(__fmul_rn(p, r), 5.0000001201e-1F);
  p = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0F);
  return __fmul_rn(p, __uint_as_float(static_cast<unsigned>(n + 127) << 23));
}

DEVICE bool IsFinite(float x) { return (__float_as_uint(x) & 0x7f800000U) != 0x7f800000U; }

}  // namespace inferd::kernels::cuda
