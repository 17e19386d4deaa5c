// SPDX-License-Identifier: Apache-2.0
// The tables of kernels, one per instruction set.
#include "kernels/kernels.h"

#include "kernels/attention/attention_avx2.h"
#include "kernels/attention/attention_avx512.h"
#include "kernels/attention/attention_ref.h"
#include "kernels/matmul/matmul_avx2.h"
#include "kernels/matmul/matmul_avx512.h"
#include "kernels/matmul/matmul_ref.h"
#include "kernels/rows/rows_avx2.h"
#include "kernels/rows/rows_avx512.h"
#include "kernels/rows/rows_ref.h"

namespace inferd::kernels {

const KernelTable& ScalarKernels() {
  static constexpr KernelTable kTable = {
      .name = "scalar",
      .matmul = MatMulScalar,
      .attention_bf16 = AttentionBf16Scalar,
      .attention_half = AttentionHalfScalar,
      .attention_float = AttentionFloatScalar,
      .quantize = QuantizeScalar,
      .rms_norm = RmsNormScalar,
      .gate_mul = GateMulScalar,
      .add = AddScalar,
      .axpy = AxpyScalar,
  };
  return kTable;
}

const KernelTable& Avx2Kernels() {
  static constexpr KernelTable kTable = {
      .name = "avx2",
      .matmul = MatMulAvx2,
      .attention_bf16 = AttentionBf16Avx2,
      .attention_half = AttentionHalfAvx2,
      .attention_float = AttentionFloatAvx2,
      .quantize = QuantizeAvx2,
      .rms_norm = RmsNormAvx2,
      .gate_mul = GateMulAvx2,
      .add = AddAvx2,
      .axpy = AxpyAvx2,
  };
  return kTable;
}

const KernelTable& Avx512Kernels() {
  static constexpr KernelTable kTable = {
      .name = "avx512-vnni",
      .matmul = MatMulAvx512,
      .attention_bf16 = AttentionBf16Avx512,
      .attention_half = AttentionHalfAvx512,
      .attention_float = AttentionFloatAvx512,
      .quantize = QuantizeAvx512,
      .rms_norm = RmsNormAvx512,
      .gate_mul = GateMulAvx512,
      .add = AddAvx512,
      .axpy = AxpyAvx512,
  };
  return kTable;
}

}  // namespace inferd::kernels
