// SPDX-License-Identifier: Apache-2.0
#include "tensor/host_arena.h"

#include <utility>

namespace inferd::tensor {
namespace {

// Address space, not memory: pages that no buffer has are never touched.
constexpr std::size_t kMappingBytes = std::size_t{64} << 20;
constexpr std::size_t kAlignment = 128;

}  // namespace

Result<HostBuffer> HostArena::Allocate(std::size_t bytes) {
  if (bytes == 0 || bytes >= kMappingBytes) {
    return HostBuffer::Allocate(bytes);
  }
  if (mapping_ == nullptr || mapping_->size() - used_ < bytes) {
    INFERD_ASSIGN(HostBuffer mapping, HostBuffer::Allocate(kMappingBytes));
    mapping_ = std::make_shared<HostBuffer>(std::move(mapping));
    used_ = 0;
  }
  HostBuffer part = HostBuffer::Part(mapping_, used_, bytes);
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return part;
}

}  // namespace inferd::tensor
