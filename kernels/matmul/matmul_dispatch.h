// SPDX-License-Identifier: Apache-2.0
// The product launchers by family of formats; each family is a source of its own, as these kernels
// take long to compile.
#pragma once

#include "base/dtype.h"
#include "kernels/cuda/stream.h"

#include <cstdint>

namespace inferd::kernels::cuda {

struct MatMulLaunch;

/// Each returns kInvalidValue for a type of another family.
Status LaunchPlainMatMul(DType type, const MatMulLaunch& args, std::int64_t rows, Stream stream);
Status LaunchScaledMatMul(DType type, const MatMulLaunch& args, std::int64_t rows, Stream stream);
Status LaunchBlockMatMul(DType type, const MatMulLaunch& args, std::int64_t rows, Stream stream);
Status LaunchSuperBlockMatMul(DType type,
                              const MatMulLaunch& args,
                              std::int64_t rows,
                              Stream stream);

}  // namespace inferd::kernels::cuda
