// SPDX-License-Identifier: Apache-2.0
// Where the ranks of an emulated NCCL communicator meet: a shared-memory segment with one ring of
// bytes for every ordered pair of ranks. All zeros is its first state, so that whoever comes first
// makes it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace inferd::simt {

inline constexpr int kMaxNcclRanks = 32;

/// One writer, one reader.
struct NcclRing {
  static constexpr std::size_t kBytes = 128U << 10;

  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  std::array<char, kBytes> bytes;

  /// Both return how many bytes they moved, at most `size`.
  std::size_t Write(const char* from, std::size_t size);
  std::size_t Read(char* to, std::size_t size);
};

struct NcclShared {
  std::atomic<std::uint32_t> ranks;   // that the first rank named
  std::atomic<std::uint32_t> joined;  // how many have come
  std::array<std::atomic<std::uint32_t>, kMaxNcclRanks> here;
};

class NcclSegment {
 public:
  /// Null when there is no shared memory, or another size was named before.
  static std::unique_ptr<NcclSegment> Open(const std::string& name, int ranks);
  ~NcclSegment();
  NcclSegment(const NcclSegment&) = delete;
  NcclSegment& operator=(const NcclSegment&) = delete;

  NcclShared& shared() const { return *static_cast<NcclShared*>(data_); }
  NcclRing& RingOf(int from, int to) const;
  /// Removes the name; mappings live on.
  void Unlink() const;

 private:
  NcclSegment(std::string name, int ranks, void* data, std::size_t bytes)
      : name_(std::move(name)), ranks_(ranks), data_(data), bytes_(bytes) {}

  const std::string name_;
  const int ranks_;
  void* const data_;
  const std::size_t bytes_;
};

}  // namespace inferd::simt
