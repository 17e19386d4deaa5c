// SPDX-License-Identifier: Apache-2.0
// The plain product: any form, any CPU. Fallback of every instruction set and the reference of the
// fast kernels' bits.
#pragma once

#include "kernels/kernels.h"

namespace inferd::kernels {

void MatMulScalar(const MatMulArgs& args);

}  // namespace inferd::kernels
