// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include "base/digest.h"
#include "base/error.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace inferd::base {
namespace {

Error FromErrno(std::string_view what, const std::string& path) {
  const int code = errno;
  if (code == ENOENT) {
    return NotFound("{} {}: no such file", what, path);
  }
  if (code == EACCES || code == EPERM) {
    return PermissionDenied("{} {}: permission denied", what, path);
  }
  return Unavailable("{} {}: {}", what, path, std::strerror(code));
}

Result<UniqueFd> OpenForReading(const std::string& path, struct stat* info) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() || ::fstat(fd.get(), info) != 0) {
    return FromErrno("cannot open", path);
  }
  if (!S_ISREG(info->st_mode)) {
    return InvalidArgument("{} is not a regular file", path);
  }
  return fd;
}

}  // namespace

void UniqueFd::Reset(int fd) {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  fd_ = fd;
}

Result<MappedFile> MappedFile::Open(const std::string& path) {
  struct stat info {};
  INFERD_ASSIGN(UniqueFd fd, OpenForReading(path, &info));
  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<std::uint64_t>(info.st_size);
  if (file.size_ > 0) {
    void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (data == MAP_FAILED) {
      return FromErrno("cannot map", path);
    }
    file.data_ = static_cast<const std::byte*>(data);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

static void Advise(const std::byte* data, std::uint64_t offset, std::uint64_t length, int advice) {
  constexpr std::uint64_t kPage = 4096;
  const std::uint64_t begin = offset / kPage * kPage;
  ::madvise(const_cast<std::byte*>(data + begin), length + (offset - begin), advice);
}

void MappedFile::WillNeed(std::uint64_t offset, std::uint64_t length) const {
  Advise(data_, offset, length, MADV_WILLNEED);
}

void MappedFile::DontNeed(std::uint64_t offset, std::uint64_t length) const {
  Advise(data_, offset, length, MADV_DONTNEED);
}

Result<std::string> ReadFile(const std::string& path, std::uint64_t max_bytes) {
  struct stat info {};
  INFERD_ASSIGN(const UniqueFd fd, OpenForReading(path, &info));
  if (static_cast<std::uint64_t>(info.st_size) > max_bytes) {
    return InvalidArgument(
        "{} has {} bytes, more than the {} allowed", path, info.st_size, max_bytes);
  }
  std::string content(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = ::read(fd.get(), content.data() + done, content.size() - done);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return FromErrno("cannot read", path);
    }
    if (got == 0) {
      break;  // The file shrank: what is there is the content.
    }
    done += static_cast<std::size_t>(got);
  }
  content.resize(done);
  return content;
}

Result<> WriteFileAtomic(const std::string& path, std::string_view content) {
  std::string temporary = path + ".XXXXXX";
  const UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.valid()) {
    return FromErrno("cannot create", temporary);
  }
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t put = ::write(fd.get(), content.data() + done, content.size() - done);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put < 0) {
      const Error error = FromErrno("cannot write", temporary);
      ::unlink(temporary.c_str());
      return error;
    }
    done += static_cast<std::size_t>(put);
  }
  if (::fsync(fd.get()) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) {
    const Error error = FromErrno("cannot replace", path);
    ::unlink(temporary.c_str());
    return error;
  }
  return {};
}

Result<std::string> Sha256OfFile(const std::string& path) {
  struct stat info {};
  INFERD_ASSIGN(const UniqueFd fd, OpenForReading(path, &info));
  INFERD_ASSIGN(Digest digest, Digest::Make(DigestKind::kSha256));
  std::vector<std::byte> buffer(1U << 20);
  for (;;) {
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return FromErrno("cannot read", path);
    }
    if (got == 0) {
      break;
    }
    digest.Update(std::span(buffer).first(static_cast<std::size_t>(got)));
  }
  return ToHex(digest.Finish());
}

std::string CacheDir() {
  if (const char* own = std::getenv("INFERD_CACHE"); own != nullptr && *own != '\0') {
    return own;
  }
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg != '\0') {
    return std::string(xdg) + "/inferd";
  }
  const char* home = std::getenv("HOME");
  return std::string(home != nullptr ? home : ".") + "/.cache/inferd";
}

}  // namespace inferd::base
