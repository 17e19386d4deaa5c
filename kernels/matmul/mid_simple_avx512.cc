// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul/int8_mid_avx512.h"
#include "kernels/matmul/matmul_avx512.h"

namespace inferd::kernels {

void MidSimpleAvx512(const MatMulArgs& args) {
  switch (args.form) {
    case PackForm::kQ8:
      return MidRows<PackForm::kQ8>(args);
    case PackForm::kQ5:
      return MidRows<PackForm::kQ5>(args);
    default:
      return MidRows<PackForm::kQ4>(args);
  }
}

}  // namespace inferd::kernels
