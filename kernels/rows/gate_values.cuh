// SPDX-License-Identifier: Apache-2.0
// The activation functions of gated layers, one value.
#pragma once

#include "kernels/cuda/shim.cuh"
#include "kernels/kernels.h"

namespace inferd::kernels::cuda {

template <Gate kKind>
DEVICE float GateValue(float a) {
  if (kKind == Gate::kSilu) {
    return a / (1.0F + expf(-a));
  }
  if (kKind == Gate::kGeluTanh) {
    return 0.5F * a * (1.0F + tanhf(0.79788456F * (a + 0.044715F * a * a * a)));
  }
  return 0.5F * a * (1.0F + erff(a * 0.70710678F));
}

}  // namespace inferd::kernels::cuda
