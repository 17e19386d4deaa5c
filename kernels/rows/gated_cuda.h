// SPDX-License-Identifier: Apache-2.0
// The shared expert's part of a mixture on the device.
#pragma once

#include "kernels/cuda/stream.h"

#include <cstdint>

namespace inferd::kernels::cuda {

/// y += sigmoid(gate[row]) * x, [rows, n].
Status AddGated(float* y,
                std::int64_t ldy,
                const float* x,
                std::int64_t ldx,
                const float* gate,
                std::int64_t rows,
                std::int64_t n,
                Stream stream);

}  // namespace inferd::kernels::cuda
