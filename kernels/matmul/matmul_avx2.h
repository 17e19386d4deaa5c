// SPDX-License-Identifier: Apache-2.0
// Entry points of the AVX2 products; each is one file. MatMulAvx2 picks by form.
#pragma once

#include "kernels/kernels.h"

namespace inferd::kernels {

void MatMulAvx2(const MatMulArgs& args);

/// Any int8 form; m in 1..kMatMulRows.
void Int8MatMulAvx2(const MatMulArgs& args);
/// kBf16, kF32, kF16; m in 1..kMatMulRows.
void FloatMatMulAvx2(const MatMulArgs& args);

}  // namespace inferd::kernels
