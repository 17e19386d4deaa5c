// SPDX-License-Identifier: Apache-2.0
// Attention over a latent cache (LatentArgs in kernels.h) for each instruction set.
#pragma once

#include "kernels/kernels.h"

namespace inferd::kernels {

/// Double sums: the scalar table's entry and the reference of the others.
void AttentionLatentScalar(const LatentArgs& args);
void AttentionLatentAvx2(const LatentArgs& args);
void AttentionLatentAvx512(const LatentArgs& args);

}  // namespace inferd::kernels
