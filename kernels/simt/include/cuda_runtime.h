// SPDX-License-Identifier: Apache-2.0
// Stands in for NVIDIA's header of this name where g++ compiles the kernels; nvcc never sees it.
#pragma once

#define INFERD_SIMT 1
#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

#include "kernels/simt/device_functions.h"
#include "kernels/simt/runtime_api.h"
#include "kernels/simt/tensor_core.h"
