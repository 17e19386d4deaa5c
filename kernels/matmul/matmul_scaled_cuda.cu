// SPDX-License-Identifier: Apache-2.0
// Products with FP8, int8 and int4 weights and scales beside them.
#include "kernels/matmul/matmul_dispatch.h"
#include "kernels/matmul/matmul_kernel.cuh"
#include "kernels/matmul/weight_formats.cuh"

namespace inferd::kernels::cuda {

Status LaunchScaledMatMul(DType type, const MatMulLaunch& args, std::int64_t rows, Stream stream) {
  switch (type) {
    case DType::kF8E4M3:
      return LaunchMatMul<WeightF8>(args, rows, stream);
    case DType::kI8:
      return LaunchMatMul<WeightI8>(args, rows, stream);
    case DType::kU8:
      return LaunchMatMul<WeightInt4>(args, rows, stream);
    default:
      return Status::kInvalidValue;
  }
}

}  // namespace inferd::kernels::cuda
