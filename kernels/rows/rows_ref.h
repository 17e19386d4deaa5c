// SPDX-License-Identifier: Apache-2.0
// Row kernels in plain C++: the scalar table's entries, and the fallback of rare cases in the other
// tables.
#pragma once

#include "kernels/kernels.h"

namespace inferd::kernels {

void QuantizeScalar(const float* x, std::int64_t k, ActBlock* out);
void RmsNormScalar(const float* x, const float* weight, float eps, std::int64_t k, float* y);
void GateMulScalar(Gate kind, const float* gate, const float* up, std::int64_t n, float* y);
void AddScalar(float* x, const float* y, std::int64_t n);
void AxpyScalar(float scale, const float* x, std::int64_t n, float* y);

}  // namespace inferd::kernels
