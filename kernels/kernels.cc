// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernels.h"

#include "kernels/attention/attention_ref.h"
#include "kernels/matmul/matmul_ref.h"
#include "kernels/rows/rows_ref.h"

namespace inferd::kernels {

const KernelTable& ScalarKernels() {
  static constexpr KernelTable kTable = {
      .name = "scalar",
      .matmul = MatMulScalar,
      .attention_bf16 = AttentionBf16Scalar,
      .attention_float = AttentionFloatScalar,
      .quantize = QuantizeScalar,
      .to_bf16 = ToBf16Scalar,
      .rms_norm = RmsNormScalar,
      .gate_mul = GateMulScalar,
      .add = AddScalar,
      .axpy = AxpyScalar,
  };
  return kTable;
}

}  // namespace inferd::kernels
