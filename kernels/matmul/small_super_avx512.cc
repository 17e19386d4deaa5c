// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul/int8_small_avx512.h"
#include "kernels/matmul/matmul_avx512.h"

namespace inferd::kernels {

void SmallSuperAvx512(const MatMulArgs& args) {
  switch (args.form) {
    case PackForm::kQ4K:
      return SmallRows<PackForm::kQ4K>(args);
    case PackForm::kQ5K:
      return SmallRows<PackForm::kQ5K>(args);
    default:
      return SmallRows<PackForm::kQ6K>(args);
  }
}

}  // namespace inferd::kernels
