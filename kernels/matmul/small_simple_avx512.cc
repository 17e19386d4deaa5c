// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul/int8_small_avx512.h"
#include "kernels/matmul/matmul_avx512.h"

namespace inferd::kernels {

void SmallSimpleAvx512(const MatMulArgs& args) {
  switch (args.form) {
    case PackForm::kQ8:
      return SmallRows<PackForm::kQ8>(args);
    case PackForm::kQ5:
      return SmallRows<PackForm::kQ5>(args);
    default:
      return SmallRows<PackForm::kQ4>(args);
  }
}

}  // namespace inferd::kernels
