// SPDX-License-Identifier: Apache-2.0
// Attention in plain C++, double sums: the scalar table's entries and the reference of the fast
// kernels.
#pragma once

#include "kernels/kernels.h"

namespace inferd::kernels {

void AttentionBf16Scalar(const AttentionArgs& args);
void AttentionHalfScalar(const AttentionArgs& args);
void AttentionFloatScalar(const AttentionArgs& args);
void AttentionFp8Scalar(const AttentionArgs& args);
void AttentionInt8Scalar(const AttentionArgs& args);

}  // namespace inferd::kernels
