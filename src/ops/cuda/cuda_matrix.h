// SPDX-License-Identifier: Apache-2.0
// A weight matrix in a CUDA device's memory.
#pragma once

#include "kernels/matmul/matmul_cuda.h"
#include "ops/device.h"
#include "ops/memory.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

/// Rows [n, k], row-major, as `type`.
class CudaMatrix final : public PackedMatrix {
 public:
  /// scales [n, groups of group_columns columns], or empty.
  CudaMatrix(DType type,
             std::int64_t n,
             std::int64_t k,
             Memory data,
             Memory scales,
             std::int64_t group_columns)
      : type_(type),
        n_(n),
        k_(k),
        data_(std::move(data)),
        scales_(std::move(scales)),
        group_columns_(group_columns) {}

  std::int64_t n() const override { return n_; }
  std::int64_t k() const override { return k_; }
  ActForm form() const override { return kActFloat; }
  std::size_t bytes() const override { return data_.bytes() + scales_.bytes(); }

  DType type() const { return type_; }
  const Memory& scales() const { return scales_; }
  std::int64_t group_columns() const { return group_columns_; }
  const std::byte* data() const { return data_.data(); }
  /// As the kernels take it.
  kernels::cuda::Matrix Args() const;

 private:
  DType type_;
  std::int64_t n_;
  std::int64_t k_;
  Memory data_;
  Memory scales_;
  std::int64_t group_columns_;
};

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
