// SPDX-License-Identifier: Apache-2.0
// Zeroed host memory for weights and activations: huge pages asked for, freed with the object.
#pragma once

#include "inferd/result.h"

#include <cstddef>
#include <memory>
#include <span>

namespace inferd::tensor {

/// Owns one anonymous mapping, or a part of one. Movable; any thread may read or write it, the
/// owner alone moves or frees it.
class HostBuffer {
 public:
  HostBuffer() = default;
  ~HostBuffer();
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  /// `bytes` zeroed bytes aligned to at least 4096. Zero bytes give an empty buffer. Fails with
  /// kResourceExhausted.
  static Result<HostBuffer> Allocate(std::size_t bytes);

  /// Bytes [at, at + bytes) of `whole`, which lives on with its parts; as aligned as `at`.
  static HostBuffer Part(std::shared_ptr<HostBuffer> whole, std::size_t at, std::size_t bytes);

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> span() { return {data_, size_}; }

 private:
  HostBuffer(std::byte* data, std::size_t size, std::size_t mapped)
      : data_(data), size_(size), mapped_(mapped) {}

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;  // 0: of another's mapping
  std::shared_ptr<HostBuffer> whole_;
};

}  // namespace inferd::tensor
