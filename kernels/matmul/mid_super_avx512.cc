// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul/int8_mid_avx512.h"
#include "kernels/matmul/matmul_avx512.h"

namespace inferd::kernels {

void MidSuperAvx512(const MatMulArgs& args) {
  switch (args.form) {
    case PackForm::kQ4K:
      return MidRows<PackForm::kQ4K>(args);
    case PackForm::kQ5K:
      return MidRows<PackForm::kQ5K>(args);
    default:
      return MidRows<PackForm::kQ6K>(args);
  }
}

}  // namespace inferd::kernels
