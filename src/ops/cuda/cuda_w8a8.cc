// SPDX-License-Identifier: Apache-2.0
// Products of weights and activations of 8 bits each.
#include "base/check.h"
#include "kernels/matmul/matmul_w8a8_cuda.h"
#include "ops/cuda/cuda_device.h"

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

namespace {

namespace k = kernels::cuda;

}  // namespace

void CudaDevice::MatMulBytes(const CudaActivations& act,
                             std::int64_t rows,
                             const MatMulTask& task) {
  const auto& weight = static_cast<const CudaMatrix&>(*task.weight);
  const k::ByteType type = weight.form() == kActRowFp8 ? k::ByteType::kFp8 : k::ByteType::kInt8;
  k::MatMulW8A8Args args;
  args.w = weight.data();
  args.n = weight.n();
  args.k = weight.k();
  args.w_scales = weight.scales().floats();
  args.x = act.Bytes(false);
  args.m = rows;
  args.bias = task.bias;
  args.y = task.y;
  args.ldy = task.ldy;
  INFERD_CHECK(act.HasBytes() && args.x.type == type);
  if (!Use()) {
    return;
  }
  if (act.byte_rows() < rows) {  // the floats came from other ranks
    INFERD_CHECK(act.data() != nullptr);
    Check(k::QuantiseRows(act.data(), act.k(), rows, act.k(), args.x, stream_), "quantising rows");
    act.set_byte_rows(rows);
  }
  Check(k::MatMulW8A8(args, stream_), "a product with weights");
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
