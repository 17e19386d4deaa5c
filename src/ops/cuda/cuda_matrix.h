// SPDX-License-Identifier: Apache-2.0
// A weight matrix in a CUDA device's memory.
#pragma once

#include "kernels/matmul/matmul_cuda.h"
#include "ops/device.h"
#include "ops/memory.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

/// Which input each stored column meets; matrices with the same order share it.
struct ColumnList {
  std::vector<std::int32_t> inputs;  // as ColumnOrder's, on the host
  std::int64_t k = 0;
  Memory device;
};

/// Rows [n, columns], row-major, as `type`.
class CudaMatrix final : public PackedMatrix {
 public:
  /// scales [n, groups of group_columns columns], or empty. Without an order column j meets input
  /// j. `form`: kActFloat, or the rows of bytes that match `type`.
  CudaMatrix(DType type,
             std::int64_t n,
             std::int64_t columns,
             Memory data,
             Memory scales,
             std::int64_t group_columns,
             std::shared_ptr<const ColumnList> order = nullptr,
             ActForm form = kActFloat)
      : type_(type),
        form_(form),
        n_(n),
        columns_(columns),
        data_(std::move(data)),
        scales_(std::move(scales)),
        group_columns_(group_columns),
        order_(std::move(order)) {}

  std::int64_t n() const override { return n_; }
  std::int64_t k() const override { return order_ != nullptr ? order_->k : columns_; }
  ActForm form() const override { return form_; }
  /// With the order, whoever shares it.
  std::size_t bytes() const override {
    return data_.bytes() + scales_.bytes() + (order_ != nullptr ? order_->device.bytes() : 0);
  }

  DType type() const { return type_; }
  std::int64_t columns() const { return columns_; }
  const ColumnList* order() const { return order_.get(); }
  const Memory& scales() const { return scales_; }
  std::int64_t group_columns() const { return group_columns_; }
  const std::byte* data() const { return data_.data(); }
  /// As the kernels take it.
  kernels::cuda::Matrix Args() const;

 private:
  DType type_;
  ActForm form_;
  std::int64_t n_;
  std::int64_t columns_;
  Memory data_;
  Memory scales_;
  std::int64_t group_columns_;
  std::shared_ptr<const ColumnList> order_;
};

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
