// SPDX-License-Identifier: Apache-2.0
// Products with F32, F16 and BF16 weights.
#include "kernels/matmul/matmul_dispatch.h"
#include "kernels/matmul/matmul_kernel.cuh"
#include "kernels/matmul/weight_formats.cuh"

namespace inferd::kernels::cuda {

Status LaunchPlainMatMul(DType type, const MatMulLaunch& args, std::int64_t rows, Stream stream) {
  switch (type) {
    case DType::kF32:
      return LaunchMatMul<WeightF32>(args, rows, stream);
    case DType::kF16:
      return LaunchMatMul<WeightF16>(args, rows, stream);
    case DType::kBF16:
      return LaunchMatMul<WeightBf16>(args, rows, stream);
    default:
      return Status::kInvalidValue;
  }
}

}  // namespace inferd::kernels::cuda
