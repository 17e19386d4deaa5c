// SPDX-License-Identifier: Apache-2.0
// Files: owned descriptors, read-only mappings, whole small files, sha256.
#pragma once

#include "inferd/result.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace inferd::base {

/// Owns a file descriptor; closes it once.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset(std::exchange(other.fd_, -1));
    }
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

/// A whole file mapped read-only. Movable; the bytes stay put. Reading past a file that shrinks
/// meanwhile raises SIGBUS: readers check every range against size() first, and the loader treats a
/// changed file as an error.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, static_cast<std::size_t>(size_)}; }

  /// madvise(WILLNEED / DONTNEED) of a byte range; a hint, never fails.
  void WillNeed(std::uint64_t offset, std::uint64_t length) const;
  void DontNeed(std::uint64_t offset, std::uint64_t length) const;

 private:
  MappedFile() = default;

  std::string path_;
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

/// Whole file as text; refuses files larger than max_bytes.
Result<std::string> ReadFile(const std::string& path, std::uint64_t max_bytes);
/// Writes beside `path` and renames, so that a reader never sees half a file.
Result<> WriteFileAtomic(const std::string& path, std::string_view content);

/// Lower-case hex sha256 of a file, read in chunks.
Result<std::string> Sha256OfFile(const std::string& path);

/// The user's cache folder of inferd: $INFERD_CACHE, else $XDG_CACHE_HOME/inferd, else
/// ~/.cache/inferd.
std::string CacheDir();

}  // namespace inferd::base
