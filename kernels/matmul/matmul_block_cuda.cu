// SPDX-License-Identifier: Apache-2.0
// Products with GGUF's blocks of 32.
#include "kernels/matmul/block_formats.cuh"
#include "kernels/matmul/matmul_dispatch.h"
#include "kernels/matmul/matmul_kernel.cuh"

namespace inferd::kernels::cuda {

Status LaunchBlockMatMul(DType type, const MatMulLaunch& args, std::int64_t rows, Stream stream) {
  switch (type) {
    case DType::kQ4_0:
      return LaunchMatMul<WeightQ4_0>(args, rows, stream);
    case DType::kQ4_1:
      return LaunchMatMul<WeightQ4_1>(args, rows, stream);
    case DType::kQ5_0:
      return LaunchMatMul<WeightQ5_0>(args, rows, stream);
    case DType::kQ5_1:
      return LaunchMatMul<WeightQ5_1>(args, rows, stream);
    case DType::kQ8_0:
      return LaunchMatMul<WeightQ8_0>(args, rows, stream);
    case DType::kMXFP4:
      return LaunchMatMul<WeightMxfp4>(args, rows, stream);
    default:
      return Status::kInvalidValue;
  }
}

}  // namespace inferd::kernels::cuda
