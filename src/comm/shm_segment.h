// SPDX-License-Identifier: Apache-2.0
// A POSIX shared-memory segment of one group: made by rank 0, opened by the others, mapped whole
// but committed by parts.
#pragma once

#include "base/file.h"
#include "inferd/result.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace inferd::comm {

/// The mapping and its descriptor. Every rank holds a lock on byte `rank` of the descriptor for as
/// long as it lives: the kernel drops it with the process, however that ends, so that Present()
/// tells the living from the dead without pids (which differ between containers). Movable; one
/// owner.
class ShmSegment {
 public:
  /// kAlreadyExists while the group of that name lives; what a dead group left under the name is
  /// removed first. `bytes` is the size of the file; the first `committed_bytes` are backed by
  /// memory at once.
  static Result<ShmSegment> Create(const std::string& name,
                                   std::size_t bytes,
                                   std::size_t committed_bytes);
  /// kNotFound while rank 0 has not made it (or has not sized it, or is dead): try again.
  static Result<ShmSegment> Open(const std::string& name, std::size_t bytes);

  ShmSegment(ShmSegment&& other) noexcept;
  ShmSegment& operator=(ShmSegment&&) = delete;
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;
  ~ShmSegment();

  std::byte* data() const { return data_; }

  /// Takes the lock of `rank`; kAlreadyExists when another process has it.
  Result<> Claim(int rank);
  /// Whether another holder of `rank`'s lock is alive.
  bool Present(int rank) const;
  /// Backs a range with memory, so that a full /dev/shm is an error here and not a signal later.
  /// Thread-safe.
  Result<> Commit(std::size_t offset, std::size_t bytes) const;
  /// Removes the name; the mappings live on. Harmless when it is gone already.
  void Unlink() const;

 private:
  ShmSegment(std::string name, base::UniqueFd fd, std::byte* data, std::size_t bytes);
  static Result<ShmSegment> Map(const std::string& name, base::UniqueFd fd, std::size_t bytes);

  std::string name_;
  base::UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// "/inferd-" and 32 hex digits of a hash of id and generation.
std::string ShmName(const std::string& id, std::uint64_t generation);

}  // namespace inferd::comm
