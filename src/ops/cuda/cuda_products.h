// SPDX-License-Identifier: Apache-2.0
// What a CUDA device keeps for its products beside the matrices.
#pragma once

#include "base/dtype.h"
#include "ops/cuda/cublaslt.h"
#include "ops/cuda/cuda_matrix.h"
#include "ops/memory.h"

#include <cstdint>
#include <memory>
#include <optional>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

/// Products that cuBLASLt does: those of many rows with F32, F16 and BF16 matrices.
struct ProductLibrary {
  std::unique_ptr<CublasLt> lt;  // null: own kernels do all
  bool failed = false;           // the same from then on
  std::int64_t least_rows = 0;
  Memory workspace;
};

/// Inputs of products in another form than rows of floats: split into terms of a 16-bit type, for
/// the library, or in the order of a matrix' columns.
struct ProductInputs {
  std::int64_t widest_split = 0;    // most inputs of a matrix that may go to the library; 0: none
  std::int64_t widest_ordered = 0;  // most columns of a matrix with an order
  std::int64_t piece_rows = 0;      // there is room for so many rows at once
  Memory memory;
  // What stands there of all rows of this MatMul, if anything does: at most one of the two.
  std::optional<DType> split;
  const ColumnList* ordered = nullptr;
};

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
