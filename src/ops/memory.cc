// SPDX-License-Identifier: Apache-2.0
#include "ops/memory.h"

#include "base/error.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace inferd::ops {

Result<Memory> AllocateHostMemory(std::size_t bytes, std::string_view what) {
  if (bytes == 0) {
    return Memory();
  }
  void* memory = mmap(
      nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return ResourceExhausted(
        "{} bytes of memory for {} are not to be had: {}", bytes, what, std::strerror(errno));
  }
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  if (bytes >= kHugePage) {
    (void)madvise(memory, bytes, MADV_HUGEPAGE);  // a hint: without it only slower
  }
  return Memory(static_cast<std::byte*>(memory), bytes, [](std::byte* data, std::size_t size) {
    munmap(data, size);
  });
}

}  // namespace inferd::ops
