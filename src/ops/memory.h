// SPDX-License-Identifier: Apache-2.0
// Memory: bytes that a device gave out, zeroed, freed with the object. Where they lie is the
// device's business: on a GPU the host must not touch what Device::Allocate gave.
#pragma once

#include "inferd/result.h"

#include <cstddef>
#include <string_view>
#include <utility>

namespace inferd::ops {

/// Movable. `release` frees what the device allocated; a device may be gone by then.
class Memory {
 public:
  using Release = void (*)(std::byte* data, std::size_t bytes);

  Memory() = default;
  Memory(std::byte* data, std::size_t bytes, Release release)
      : data_(data), bytes_(bytes), release_(release) {}
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        release_(other.release_) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
    return *this;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (data_ != nullptr) {
      release_(data_, bytes_);
    }
  }

  std::byte* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Release release_ = nullptr;
};

/// Host memory straight from the kernel, cache-line aligned, huge pages asked for; pages cost
/// nothing until touched. Fails with kResourceExhausted; `what` names the use in the message.
Result<Memory> AllocateHostMemory(std::size_t bytes, std::string_view what);

}  // namespace inferd::ops
