// SPDX-License-Identifier: Apache-2.0
// Paged attention with AVX2, one query row at a time.
#pragma once

#include "kernels/kernels.h"

namespace inferd::kernels {

void AttentionBf16Avx2(const AttentionArgs& args);
void AttentionHalfAvx2(const AttentionArgs& args);
void AttentionFloatAvx2(const AttentionArgs& args);
void AttentionFp8Avx2(const AttentionArgs& args);
void AttentionInt8Avx2(const AttentionArgs& args);

}  // namespace inferd::kernels
