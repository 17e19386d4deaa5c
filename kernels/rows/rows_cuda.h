// SPDX-License-Identifier: Apache-2.0
// Row kernels on the device; rows_ref.h has the same in plain C++. Pointers are device memory, rows
// are floats and `ld` floats apart. A row's result does not depend on the others.
#pragma once

#include "kernels/cuda/stream.h"
#include "kernels/kernels.h"

#include <cstdint>

namespace inferd::kernels::cuda {

/// y = RmsNorm(x) * weight over k values of each row; weight null: all ones. y may be x.
Status RmsNorm(const float* x,
               std::int64_t ldx,
               const float* weight,
               float eps,
               std::int64_t rows,
               std::int64_t k,
               float* y,
               std::int64_t ldy,
               Stream stream);

/// x += add (the residual; null: none, x is only read), then y = RmsNorm(x) * weight, in one pass
/// over memory.
Status AddRmsNorm(float* x,
                  std::int64_t ldx,
                  const float* add,
                  std::int64_t ldadd,
                  const float* weight,
                  float eps,
                  std::int64_t rows,
                  std::int64_t k,
                  float* y,
                  std::int64_t ldy,
                  Stream stream);

/// y = (x - mean) / sqrt(variance + eps) * weight + bias; bias null: none.
Status LayerNorm(const float* x,
                 std::int64_t ldx,
                 const float* weight,
                 const float* bias,
                 float eps,
                 std::int64_t rows,
                 std::int64_t k,
                 float* y,
                 std::int64_t ldy,
                 Stream stream);

/// y = gate_fn(gate) * up, [rows, n]. y may be gate.
Status GateMul(Gate kind,
               const float* gate,
               const float* up,
               std::int64_t ld,
               std::int64_t rows,
               std::int64_t n,
               float* y,
               std::int64_t ldy,
               Stream stream);

/// x += y, [rows, n].
Status Add(float* x,
           std::int64_t ldx,
           const float* y,
           std::int64_t ldy,
           std::int64_t rows,
           std::int64_t n,
           Stream stream);

/// x = cap * tanh(x / cap), `count` values that follow one another.
Status Softcap(float* x, float cap, std::int64_t count, Stream stream);

}  // namespace inferd::kernels::cuda
