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
  MatMulArgs pass = args;
  for (std::int64_t token = 0; token < args.m; token += kMatMulRows) {
    pass.m = args.m - token < kMatMulRows ? args.m - token : kMatMulRows;
    if (IsInt8Form(args.form)) {
      pass.a_int8 = args.a_int8 + token * args.ld_int8;
    } else {
      pass.a_float = args.a_float + token * args.ld_float;
      pass.a_bf16 = args.a_bf16 + token * args.ld_bf16;
    }
    pass.y = args.y + token * args.ldy;
    body(pass);
  }
}

}  // namespace

void MatMulAvx512(const MatMulArgs& args) { InPasses(args, PassAvx512); }

void MatMulAvx512Bf16(const MatMulArgs& args) { InPasses(args, PassBf16); }

void MatMulAvx2(const MatMulArgs& args) { InPasses(args, PassAvx2); }

}  // namespace inferd::kernels
