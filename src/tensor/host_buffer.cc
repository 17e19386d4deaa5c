// SPDX-License-Identifier: Apache-2.0
#include "tensor/host_buffer.h"

#include "base/check.h"
#include "base/error.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace inferd::tensor {

HostBuffer::~HostBuffer() {
  if (mapped_ != 0) {
    munmap(data_, mapped_);
  }
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)),
      whole_(std::move(other.whole_)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(whole_, other.whole_);
  return *this;
}

Result<HostBuffer> HostBuffer::Allocate(std::size_t bytes) {
  if (bytes == 0) {
    return HostBuffer();
  }
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  if (bytes > SIZE_MAX / 2) {
    return ResourceExhausted("cannot allocate {} bytes of host memory", bytes);
  }
  // Large buffers begin on a huge page. The tail is not rounded up to one: thousands of experts
  // would waste gigabytes.
  const std::size_t mapped = (bytes + kPage - 1) / kPage * kPage;
  const std::size_t slack = bytes >= kHuge ? kHuge - kPage : 0;
  void* memory =
      mmap(nullptr, mapped + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return ResourceExhausted(
        "cannot allocate {} bytes of host memory: {}", bytes, std::strerror(errno));
  }
  auto* start = static_cast<std::byte*>(memory);
  if (slack != 0) {
    const std::size_t head = (kHuge - reinterpret_cast<std::uintptr_t>(start) % kHuge) % kHuge;
    if (head != 0) {
      munmap(start, head);
    }
    if (slack > head) {
      munmap(start + head + mapped, slack - head);
    }
    start += head;
    madvise(start, mapped, MADV_HUGEPAGE);  // Only a wish: 4 KiB pages work too.
  }
  return HostBuffer(start, bytes, mapped);
}

HostBuffer HostBuffer::Part(std::shared_ptr<HostBuffer> whole, std::size_t at, std::size_t bytes) {
  INFERD_CHECK(at <= whole->size() && bytes <= whole->size() - at);
  HostBuffer part(whole->data() + at, bytes, 0);
  part.whole_ = std::move(whole);
  return part;
}

}  // namespace inferd::tensor
