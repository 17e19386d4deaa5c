// SPDX-License-Identifier: Apache-2.0
#include "kernels/simt/nccl_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace inferd::simt {
namespace {

constexpr std::size_t kRingsAt = 4096;
static_assert(sizeof(NcclShared) <= kRingsAt);

}  // namespace

std::size_t NcclRing::Write(const char* from, std::size_t size) {
  const std::uint64_t end = written.load(std::memory_order_relaxed);
  const std::size_t room = kBytes - (end - read.load(std::memory_order_acquire));
  const std::size_t at = end % kBytes;
  const std::size_t n = std::min({size, room, kBytes - at});
  if (n > 0) {
    std::memcpy(bytes.data() + at, from, n);
    written.store(end + n, std::memory_order_release);
  }
  return n;
}

std::size_t NcclRing::Read(char* to, std::size_t size) {
  const std::uint64_t begin = read.load(std::memory_order_relaxed);
  const std::size_t held = written.load(std::memory_order_acquire) - begin;
  const std::size_t at = begin % kBytes;
  const std::size_t n = std::min({size, held, kBytes - at});
  if (n > 0) {
    std::memcpy(to, bytes.data() + at, n);
    read.store(begin + n, std::memory_order_release);
  }
  return n;
}

std::unique_ptr<NcclSegment> NcclSegment::Open(const std::string& name, int ranks) {
  const auto pairs = static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks);
  const std::size_t bytes = kRingsAt + pairs * sizeof(NcclRing);
  const int fd = ::shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) {
    return nullptr;
  }
  void* data = MAP_FAILED;
  if (::ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
    data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  ::close(fd);
  if (data == MAP_FAILED) {
    return nullptr;
  }
  std::unique_ptr<NcclSegment> segment(new NcclSegment(name, ranks, data, bytes));
  std::uint32_t named = 0;
  const auto mine = static_cast<std::uint32_t>(ranks);
  if (!segment->shared().ranks.compare_exchange_strong(named, mine) && named != mine) {
    return nullptr;
  }
  return segment;
}

NcclSegment::~NcclSegment() { ::munmap(data_, bytes_); }

NcclRing& NcclSegment::RingOf(int from, int to) const {
  auto* const rings = reinterpret_cast<NcclRing*>(static_cast<char*>(data_) + kRingsAt);
  return rings[from * ranks_ + to];
}

void NcclSegment::Unlink() const { ::shm_unlink(name_.c_str()); }

}  // namespace inferd::simt
