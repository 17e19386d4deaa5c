// SPDX-License-Identifier: Apache-2.0
// Entry points of the AVX-512 products; each is one file. MatMulAvx512 picks by form and batch.
#pragma once

#include "kernels/kernels.h"

namespace inferd::kernels {

/// Most tokens of the kernels that decode in registers.
inline constexpr int kSmallRows = 6;
/// Most tokens of the kernels that keep a decoded block in registers.
inline constexpr int kMidRows = 32;

void MatMulAvx512(const MatMulArgs& args);

/// kQ8, kQ5, kQ4; m in 1..kSmallRows.
void SmallSimpleAvx512(const MatMulArgs& args);
/// kQ4K, kQ5K, kQ6K; m in 1..kSmallRows.
void SmallSuperAvx512(const MatMulArgs& args);
/// kQ8, kQ5, kQ4 and kQ4K, kQ5K, kQ6K; m in 1..kMatMulRows, made for kSmallRows + 1..kMidRows.
void MidSimpleAvx512(const MatMulArgs& args);
void MidSuperAvx512(const MatMulArgs& args);
/// Any int8 form; m in 1..kMatMulRows.
void GemmAvx512(const MatMulArgs& args);
/// kBf16, kF32, kF16; m in 1..kMatMulRows.
void FloatMatMulAvx512(const MatMulArgs& args);

/// As MatMulAvx512, but kBf16 panels meet a_bf16. Needs AVX512_BF16.
void MatMulAvx512Bf16(const MatMulArgs& args);
/// kBf16 with a_bf16; m in 1..kMatMulRows.
void Bf16DotMatMulAvx512(const MatMulArgs& args);
/// Round to nearest even, denormals to zero; an odd k is padded with a zero.
void ToBf16Avx512(const float* x, std::int64_t k, std::uint16_t* out);

}  // namespace inferd::kernels
