// SPDX-License-Identifier: Apache-2.0
// The tables of kernels, one per instruction set.
#include "kernels/kernels.h"

#include "kernels/attention/attention_avx2.h"
#include "kernels/attention/attention_avx512.h"
#include "kernels/attention/attention_ref.h"
#include "kernels/attention/latent.h"
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
      .bf16_dot = false,
      .matmul = MatMulScalar,
      .attention_bf16 = AttentionBf16Scalar,
      .attention_half = AttentionHalfScalar,
      .attention_float = AttentionFloatScalar,
      .attention_fp8 = AttentionFp8Scalar,
      .attention_int8 = AttentionInt8Scalar,
      .attention_latent = AttentionLatentScalar,
      .quantize = QuantizeScalar,
      .to_bf16 = nullptr,
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
      .bf16_dot = false,
      .matmul = MatMulAvx2,
      .attention_bf16 = AttentionBf16Avx2,
      .attention_half = AttentionHalfAvx2,
      .attention_float = AttentionFloatAvx2,
      .attention_fp8 = AttentionFp8Avx2,
      .attention_int8 = AttentionInt8Avx2,
      .attention_latent = AttentionLatentAvx2,
      .quantize = QuantizeAvx2,
      .to_bf16 = nullptr,
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
      .bf16_dot = false,
      .matmul = MatMulAvx512,
      .attention_bf16 = AttentionBf16Avx512,
      .attention_half = AttentionHalfAvx512,
      .attention_float = AttentionFloatAvx512,
      .attention_fp8 = AttentionFp8Avx512,
      .attention_int8 = AttentionInt8Avx512,
      .attention_latent = AttentionLatentAvx512,
      .quantize = QuantizeAvx512,
      .to_bf16 = nullptr,
      .rms_norm = RmsNormAvx512,
      .gate_mul = GateMulAvx512,
      .add = AddAvx512,
      .axpy = AxpyAvx512,
  };
  return kTable;
}

const KernelTable& Avx512Bf16Kernels() {
  static constexpr KernelTable kTable = {
      .name = "avx512-bf16",
      .bf16_dot = true,
      .matmul = MatMulAvx512Bf16,
      .attention_bf16 = AttentionBf16Avx512,
      .attention_half = AttentionHalfAvx512,
      .attention_float = AttentionFloatAvx512,
      .attention_fp8 = AttentionFp8Avx512,
      .attention_int8 = AttentionInt8Avx512,
      .attention_latent = AttentionLatentAvx512,
      .quantize = QuantizeAvx512,
      .to_bf16 = ToBf16Avx512,
      .rms_norm = RmsNormAvx512,
      .gate_mul = GateMulAvx512,
      .add = AddAvx512,
      .axpy = AxpyAvx512,
  };
  return kTable;
}

}  // namespace inferd::kernels
