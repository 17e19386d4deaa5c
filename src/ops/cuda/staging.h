// SPDX-License-Identifier: Apache-2.0
// Small arrays on their way to the device: written to pinned memory, copied to the same offset on
// the device. Nothing is allocated after Reserve.
#pragma once

#include "ops/memory.h"

#include <cuda_runtime.h>

#include <cstddef>
#include <cstring>
#include <span>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

class Staging {
 public:
  Staging() = default;
  /// Equal sizes.
  Staging(Memory host, Memory device) : host_(std::move(host)), device_(std::move(device)) {}

  std::size_t bytes() const { return host_.bytes(); }
  /// Everything put so far has been copied: its place may be used again.
  void Reset() { used_ = 0; }

  /// Room for `count` values, on the host and on the device; null when it is full.
  template <class T>
  struct Place {
    T* host = nullptr;
    T* device = nullptr;
    std::size_t count = 0;
  };
  template <class T>
  Place<T> Take(std::size_t count) {
    constexpr std::size_t kAlign = 256;
    const std::size_t begin = (used_ + kAlign - 1) / kAlign * kAlign;
    if (begin + count * sizeof(T) > bytes()) {
      return {};
    }
    used_ = begin + count * sizeof(T);
    return {reinterpret_cast<T*>(host_.data() + begin),
            reinterpret_cast<T*>(device_.data() + begin),
            count};
  }
  template <class T>
  static cudaError_t Send(const Place<T>& place, cudaStream_t stream) {
    return cudaMemcpyAsync(
        place.device, place.host, place.count * sizeof(T), cudaMemcpyHostToDevice, stream);
  }

 private:
  Memory host_, device_;
  std::size_t used_ = 0;
};

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
