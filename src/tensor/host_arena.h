// SPDX-License-Identifier: Apache-2.0
// Buffers side by side in large mappings. A matrix of 3 MB in a mapping of its own has a third of
// its bytes in 4 KiB pages, smaller ones all of them, and reading it once from memory then takes
// 5 to 15 % longer (two Zen 4 CPUs of a virtual machine).
#pragma once

#include "tensor/host_buffer.h"

#include <cstddef>
#include <memory>

namespace inferd::tensor {

/// For many buffers that live about as long as each other: memory goes back to the system when all
/// buffers of a mapping are gone. Not thread-safe; the buffers may outlive it.
class HostArena {
 public:
  /// `bytes` zeroed bytes, aligned to a cache line and the one that is fetched with it; a mapping
  /// of their own if they are many. Zero bytes give an empty buffer. Fails with kResourceExhausted.
  Result<HostBuffer> Allocate(std::size_t bytes);

 private:
  std::shared_ptr<HostBuffer> mapping_;
  std::size_t used_ = 0;  // of mapping_
};

}  // namespace inferd::tensor
