// SPDX-License-Identifier: Apache-2.0
// Paged attention with AVX-512, decode and prefill: one kernel, so that a row has the same bits in
// both.
#pragma once

#include "kernels/kernels.h"

namespace inferd::kernels {

void AttentionBf16Avx512(const AttentionArgs& args);
void AttentionHalfAvx512(const AttentionArgs& args);
void AttentionFloatAvx512(const AttentionArgs& args);
void AttentionFp8Avx512(const AttentionArgs& args);
void AttentionInt8Avx512(const AttentionArgs& args);

}  // namespace inferd::kernels
