// SPDX-License-Identifier: Apache-2.0
// Buffer: zeroed memory straight from the kernel, cache-line aligned, huge pages asked for. Pages
// cost nothing until touched.
#pragma once

#include "inferd/result.h"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace inferd::model {

class Buffer {
 public:
  Buffer() = default;
  /// Fails with kResourceExhausted; `what` names the use in the message.
  static Result<Buffer> Allocate(std::size_t bytes, std::string_view what);
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace inferd::model
