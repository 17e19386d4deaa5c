// SPDX-License-Identifier: Apache-2.0
// Products with GGUF's super-blocks of 256.
#include "kernels/matmul/block_formats.cuh"
#include "kernels/matmul/matmul_dispatch.h"
#include "kernels/matmul/matmul_kernel.cuh"

namespace inferd::kernels::cuda {

Status LaunchSuperBlockMatMul(DType type,
                              const MatMulLaunch& args,
                              std::int64_t rows,
                              Stream stream) {
  switch (type) {
    case DType::kQ4_K:
      return LaunchMatMul<WeightQ4_K>(args, rows, stream);
    case DType::kQ5_K:
      return LaunchMatMul<WeightQ5_K>(args, rows, stream);
    case DType::kQ6_K:
      return LaunchMatMul<WeightQ6_K>(args, rows, stream);
    default:
      return Status::kInvalidValue;
  }
}

}  // namespace inferd::kernels::cuda
