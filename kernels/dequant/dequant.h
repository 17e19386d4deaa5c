// SPDX-License-Identifier: Apache-2.0
// The exact meaning of stored weights. UnpackBlock turns 32 values of any quantised type into small
// integers with their scales; DequantRow is the float value of a whole row, used for embeddings and
// as the reference of every product.
#pragma once

#include "base/dtype.h"

#include <cstddef>
#include <cstdint>

namespace inferd::kernels {

/// 32 consecutive weights of a row: w[i] = scale[i / 16] * (u[i] - zero) - min[i / 16], each step
/// exact or rounded once.
struct Block32 {
  std::uint8_t u[32];
  float scale[2];
  float min[2];
  int zero;  // the same for all blocks of a type
};

/// True for the block-quantised types UnpackBlock knows.
bool IsBlockQuantised(DType type);

/// Block j (32 values) of the stored block at `block`; j < BlockElements(type) / 32.
void UnpackBlock(DType type, const std::byte* block, int j, Block32* out);

/// out[0..k) = the values of a stored row. k is a multiple of the block.
void DequantRow(DType type, const std::byte* row, std::int64_t k, float* out);

}  // namespace inferd::kernels
