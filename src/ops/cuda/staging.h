// SPDX-License-Identifier: Apache-2.0
// Small arrays on their way to the device: written to pinned memory, copied to the same offset on
// the device. Two halves of pinned memory take turns, so that a step can be staged while the one
// before it has not been copied yet. Nothing is allocated after Reserve.
#pragma once

#include "ops/memory.h"

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <utility>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

class Staging {
 public:
  Staging() = default;
  /// Equal sizes.
  Staging(std::array<Memory, 2> host, Memory device)
      : host_(std::move(host)), device_(std::move(device)) {}

  std::size_t bytes() const { return device_.bytes(); }
  /// Everything put so far has been copied: its place may be used again.
  void Reset() { used_ = 0; }
  /// The other half's turn, from which everything has been copied. (On the device the place is the
  /// same: there, work is in order.)
  void Turn() {
    turn_ = 1 - turn_;
    used_ = 0;
  }

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
    return {reinterpret_cast<T*>(host_[turn_].data() + begin),
            reinterpret_cast<T*>(device_.data() + begin),
            count};
  }
  template <class T>
  static cudaError_t Send(const Place<T>& place, cudaStream_t stream) {
    return cudaMemcpyAsync(
        place.device, place.host, place.count * sizeof(T), cudaMemcpyHostToDevice, stream);
  }

 private:
  std::array<Memory, 2> host_;
  Memory device_;
  std::size_t turn_ = 0;
  std::size_t used_ = 0;
};

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
