// SPDX-License-Identifier: Apache-2.0
// Checks and the choice of the format's kernel.
#include "kernels/matmul/matmul_cuda.h"
#include "kernels/matmul/matmul_dispatch.h"
#include "kernels/matmul/matmul_kernel.cuh"

namespace inferd::kernels::cuda {
namespace {

using Launcher = Status (*)(DType, const MatMulLaunch&, std::int64_t, Stream);

Launcher LauncherOf(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      return &LaunchPlainMatMul;
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kU8:
      return &LaunchScaledMatMul;
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ8_0:
    case DType::kMXFP4:
      return &LaunchBlockMatMul;
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
      return &LaunchSuperBlockMatMul;
    default:
      return nullptr;
  }
}

Status Run(const MatMulLaunch& args, std::int64_t rows, Stream stream) {
  const Matrix& w = args.w;
  const Launcher launcher = LauncherOf(w.type);
  const bool scales_fit = w.scales == nullptr || w.scale_k >= w.k || w.scale_k % 32 == 0;
  if (launcher == nullptr || !scales_fit || w.k < 1 || w.scale_rows < 1 || w.k > 0x7fffffff - 64) {
    return Status::kInvalidValue;
  }
  if (rows == 0 || w.n == 0) {
    return Status::kOk;
  }
  return launcher(w.type, args, rows, stream);
}

}  // namespace

bool HasMatMul(DType type) { return LauncherOf(type) != nullptr; }

Status MatMul(const Matrix& w,
              const float* x,
              std::int64_t ldx,
              std::int64_t m,
              const float* bias,
              bool add,
              float* y,
              std::int64_t ldy,
              Stream stream) {
  return Run({w, x, ldx, m, bias, add, y, ldy, nullptr, 0, nullptr, nullptr, 0}, m, stream);
}

Status GroupedMatMul(const GroupedArgs& args, Stream stream) {
  if (args.experts < 1 || args.experts > 65535 || args.expert_begin == nullptr ||
      args.expert_rows == nullptr) {
    return Status::kInvalidValue;
  }
  return Run({args.w,
              args.x,
              args.ldx,
              0,
              nullptr,
              false,
              args.y,
              args.ldy,
              args.expert_rows,
              args.scale_stride,
              args.expert_begin,
              args.source,
              args.experts},
             args.max_positions,
             stream);
}

}  // namespace inferd::kernels::cuda
