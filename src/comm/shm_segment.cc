// SPDX-License-Identifier: Apache-2.0
// shm_open, open-file-description locks and fallocate behind Results.
#include "comm/shm_segment.h"

#include "base/error.h"

#include <fcntl.h>
#include <openssl/sha.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace inferd::comm {
namespace {

struct flock ByteLock(int rank) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

bool LockHeldElsewhere(int fd, int rank) {
  struct flock lock = ByteLock(rank);
  return ::fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

Error SystemError(std::string_view what, const std::string& name) {
  const int code = errno;
  const std::string_view text = ::strerrordesc_np(code);
  switch (code) {
    case ENOSPC:
    case ENOMEM:
      return ResourceExhausted(
          "{} of shared memory {}: {}; enlarge /dev/shm (for containers --shm-size or a memory "
          "volume) or lower the chunk size",
          what,
          name,
          text);
    case EACCES:
    case EPERM:
      return PermissionDenied("{} of shared memory {}: {}", what, name, text);
    default:
      return Unavailable("{} of shared memory {}: {}", what, name, text);
  }
}

Result<> FallocateFd(int fd, std::size_t offset, std::size_t bytes, const std::string& name) {
  while (::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) {
      return SystemError("allocation", name);
    }
  }
  return {};
}

/// True when the name belonged to a group whose rank 0 is dead and is free now.
bool RemoveStale(const std::string& name) {
  const base::UniqueFd old(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  if (!old.valid()) {
    return errno == ENOENT;
  }
  if (LockHeldElsewhere(old.get(), 0)) {
    return false;
  }
  ::shm_unlink(name.c_str());
  return true;
}

}  // namespace

Result<ShmSegment> ShmSegment::Create(const std::string& name,
                                      std::size_t bytes,
                                      std::size_t committed_bytes) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  base::UniqueFd fd(::shm_open(name.c_str(), kFlags, 0600));
  if (!fd.valid() && errno == EEXIST) {
    if (!RemoveStale(name)) {
      return AlreadyExists("shared memory {} belongs to a living group; use a new id or generation",
                           name);
    }
    fd.Reset(::shm_open(name.c_str(), kFlags, 0600));
  }
  if (!fd.valid()) {
    return SystemError("creation", name);
  }
  // Locked before it gets its size: an Open that sees the size also sees the lock.
  struct flock lock = ByteLock(0);
  if (::fcntl(fd.get(), F_OFD_SETLK, &lock) != 0 ||
      ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    Error error = SystemError("creation", name);
    ::shm_unlink(name.c_str());
    return error;
  }
  auto committed = FallocateFd(fd.get(), 0, committed_bytes, name);
  if (!committed.ok()) {
    ::shm_unlink(name.c_str());
    return std::move(committed).error();
  }
  auto segment = Map(name, std::move(fd), bytes);
  if (!segment.ok()) {
    ::shm_unlink(name.c_str());
  }
  return segment;
}

Result<ShmSegment> ShmSegment::Open(const std::string& name, std::size_t bytes) {
  base::UniqueFd fd(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  if (!fd.valid()) {
    if (errno == ENOENT) {
      return NotFound("shared memory {} is not there yet", name);
    }
    return SystemError("opening", name);
  }
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) {
    return SystemError("opening", name);
  }
  if (info.st_uid != ::geteuid()) {
    return PermissionDenied(
        "shared memory {} belongs to user {}, not to us ({})", name, info.st_uid, ::geteuid());
  }
  if (info.st_size == 0 || !LockHeldElsewhere(fd.get(), 0)) {
    return NotFound("shared memory {} has no living rank 0", name);
  }
  if (static_cast<std::size_t>(info.st_size) != bytes) {
    return InvalidArgument(
        "shared memory {} holds {} bytes where this rank expects {}; all ranks must be given the "
        "same size and chunk_bytes",
        name,
        info.st_size,
        bytes);
  }
  return Map(name, std::move(fd), bytes);
}

Result<ShmSegment> ShmSegment::Map(const std::string& name, base::UniqueFd fd, std::size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return SystemError("mapping", name);
  }
  return ShmSegment(name, std::move(fd), static_cast<std::byte*>(data), bytes);
}

ShmSegment::ShmSegment(std::string name, base::UniqueFd fd, std::byte* data, std::size_t bytes)
    : name_(std::move(name)), fd_(std::move(fd)), data_(data), bytes_(bytes) {}

ShmSegment::ShmSegment(ShmSegment&& other) noexcept
    : name_(std::move(other.name_)),
      fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_) {}

ShmSegment::~ShmSegment() {
  if (data_ != nullptr) {
    ::munmap(data_, bytes_);
  }
}

Result<> ShmSegment::Claim(int rank) {
  struct flock lock = ByteLock(rank);
  if (::fcntl(fd_.get(), F_OFD_SETLK, &lock) != 0) {
    if (errno == EAGAIN || errno == EACCES) {
      return AlreadyExists("rank {} has already joined the group of shared memory {}", rank, name_);
    }
    return SystemError("locking", name_);
  }
  return {};
}

bool ShmSegment::Present(int rank) const { return LockHeldElsewhere(fd_.get(), rank); }

Result<> ShmSegment::Commit(std::size_t offset, std::size_t bytes) const {
  return FallocateFd(fd_.get(), offset, bytes, name_);
}

void ShmSegment::Unlink() const { ::shm_unlink(name_.c_str()); }

std::string ShmName(const std::string& id, std::uint64_t generation) {
  const std::string text = fmt::format("{} {}", generation, id);
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest = {};
  ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  std::string name = "/inferd-";
  for (std::size_t i = 0; i < 16; ++i) {
    name += fmt::format("{:02x}", digest[i]);
  }
  return name;
}

}  // namespace inferd::comm
