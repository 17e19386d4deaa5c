// SPDX-License-Identifier: Apache-2.0
// Activations in a CUDA device's memory.
#pragma once

#include "kernels/rows/quantised_rows_cuda.h"
#include "ops/device.h"
#include "ops/memory.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

class CudaDevice;

/// Rows in floats and as bytes with a scale each, of which what the forms ask for is kept. Whoever
/// fills the rows says which forms hold them; a product makes the form it lacks from the floats.
class CudaActivations final : public Activations {
 public:
  /// `data` [max_rows, k] floats, or empty; `bytes` [max_rows, pitch] and `scales` [max_rows] where
  /// `forms` has one of the two forms of bytes. Both at once are not kept.
  CudaActivations(CudaDevice* device,
                  std::int64_t max_rows,
                  std::int64_t k,
                  unsigned forms,
                  Memory data,
                  Memory bytes,
                  Memory scales)
      : device_(device),
        max_rows_(max_rows),
        k_(k),
        forms_(forms),
        data_(std::move(data)),
        bytes_(std::move(bytes)),
        scales_(std::move(scales)) {}

  std::int64_t max_rows() const override { return max_rows_; }
  std::int64_t k() const override { return k_; }
  float* data() const { return data_.floats(); }
  const float* Floats() const override { return data(); }
  float* FloatsToFill() override {
    byte_rows_ = 0;
    return data();
  }
  /// The bytes' place; with `floats` also where the same values go as floats, if they are kept.
  bool HasBytes() const { return bytes_.bytes() > 0; }
  kernels::cuda::QuantisedRows Bytes(bool floats) const;
  /// Of so many rows the bytes are those of the values now.
  std::int64_t byte_rows() const { return byte_rows_; }
  void set_byte_rows(std::int64_t rows) const { byte_rows_ = rows; }

  std::size_t ColumnBytes(std::int64_t columns) const override;
  void CopyOut(std::int64_t rows, std::byte* out) const override;
  void CopyIn(std::int64_t rows,
              std::int64_t first,
              std::int64_t columns,
              const std::byte* in) override;

 private:
  CudaDevice* device_;
  std::int64_t max_rows_;
  std::int64_t k_;
  unsigned forms_;
  Memory data_, bytes_, scales_;
  mutable std::int64_t byte_rows_ = 0;
};

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
