// SPDX-License-Identifier: Apache-2.0
// Cuts a product into passes of kMatMulRows and picks the vector kernel by form and batch.
#include "kernels/matmul/matmul_avx2.h"
#include "kernels/matmul/matmul_avx512.h"

namespace inferd::kernels {
namespace {

void PassAvx512(const MatMulArgs& args) {
  if (!IsInt8Form(args.form)) {
    return FloatMatMulAvx512(args);
  }
  if (args.m > kMidRows || args.form >= PackForm::kByteScale) {
    return GemmAvx512(args);
  }
  const bool simple = LayoutOf(args.form).super_k == 32;
  if (args.m > kSmallRows) {
    return simple ? MidSimpleAvx512(args) : MidSuperAvx512(args);
  }
  return simple ? SmallSimpleAvx512(args) : SmallSuperAvx512(args);
}

void PassAvx2(const MatMulArgs& args) {
  return IsInt8Form(args.form) ? Int8MatMulAvx2(args) : FloatMatMulAvx2(args);
}

void PassBf16(const MatMulArgs& args) {
  return args.form == PackForm::kBf16 ? Bf16DotMatMulAvx512(args) : PassAvx512(args);
}

void InPasses(const MatMulArgs& args, void (*body)(const MatMulArgs& args)) {
  for (std::int64_t row = 0; row < args.m; row += kMatMulRows) {
    body(RowsOf(args, row, args.m - row < kMatMulRows ? args.m - row : kMatMulRows));
  }
}

}  // namespace

void MatMulAvx512(const MatMulArgs& args) { InPasses(args, PassAvx512); }

void MatMulAvx512Bf16(const MatMulArgs& args) { InPasses(args, PassBf16); }

void MatMulAvx2(const MatMulArgs& args) { InPasses(args, PassAvx2); }

}  // namespace inferd::kernels
