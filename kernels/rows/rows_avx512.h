// SPDX-License-Identifier: Apache-2.0
// Row kernels with AVX-512: formulas as in kernels.h, quantiser and norm with the scalar kernels'
// bits.
#pragma once

#include "kernels/kernels.h"

namespace inferd::kernels {

void QuantizeAvx512(const float* x, std::int64_t k, ActBlock* out);
void RmsNormAvx512(const float* x, const float* weight, float eps, std::int64_t k, float* y);
void GateMulAvx512(Gate kind, const float* gate, const float* up, std::int64_t n, float* y);
void AddAvx512(float* x, const float* y, std::int64_t n);
void AxpyAvx512(float scale, const float* x, std::int64_t n, float* y);

}  // namespace inferd::kernels
