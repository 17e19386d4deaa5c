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
  MatMulLaunch launch{};
  launch.w = w;
  launch.x = x;
  launch.ldx = ldx;
  launch.m = m;
  launch.bias = bias;
  launch.add = add;
  launch.y = y;
  launch.ldy = ldy;
  return Run(launch, m, stream);
}

Status GroupedMatMul(const GroupedArgs& args, Stream stream) {
  const bool masked = args.slot_expert != nullptr;
  const bool placed = masked ? args.slot_count != nullptr && args.source != nullptr &&
                                   args.target != nullptr && args.slot_stride > 0
                             : args.expert_begin != nullptr;
  if (args.experts < 1 || args.experts > 65535 || args.expert_rows == nullptr || !placed) {
    return Status::kInvalidValue;
  }
  MatMulLaunch launch{};
  launch.w = args.w;
  launch.x = args.x;
  launch.ldx = args.ldx;
  launch.y = args.y;
  launch.ldy = args.ldy;
  launch.expert_rows = args.expert_rows;
  launch.scale_stride = args.scale_stride;
  launch.expert_begin = args.expert_begin;
  launch.source = args.source;
  launch.experts = args.experts;
  launch.slot_expert = args.slot_expert;
  launch.slot_count = args.slot_count;
  launch.target = args.target;
  launch.slot_stride = args.slot_stride;
  return Run(launch, args.max_positions, stream);
}

}  // namespace inferd::kernels::cuda
