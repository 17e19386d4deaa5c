// SPDX-License-Identifier: Apache-2.0
// Pieces of a parallel region: every thread begins with a share of its own, in order, and helps the
// one that is furthest behind when it is done. A thread that loses its core to somebody else then
// costs the others a piece, not the rest of its share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace inferd::ops {

/// Pieces per thread and region: what an idle thread waits at most is one of them.
inline constexpr std::int64_t kPiecesPerThread = 8;

/// Deal is called between regions, Next by the threads of a region.
class WorkShares {
 public:
  explicit WorkShares(int threads)
      : threads_(threads), shares_(std::make_unique<Share[]>(static_cast<std::size_t>(threads))) {}

  /// Pieces [0, pieces), at most 2^32 - 1, in one contiguous share per thread.
  void Deal(std::int64_t pieces) {
    for (std::int64_t t = 0; t < threads_; ++t) {
      at(t).store(Pack(pieces * t / threads_, pieces * (t + 1) / threads_),
                  std::memory_order_relaxed);
    }
  }

  /// The next piece of `thread`: its own first one, else the last one of the thread with the most
  /// left. -1: none is left. Each piece is given out once.
  std::int64_t Next(std::int64_t thread) {
    std::uint64_t range = at(thread).load(std::memory_order_relaxed);
    while (First(range) < Last(range)) {
      if (at(thread).compare_exchange_weak(
              range, Pack(First(range) + 1, Last(range)), std::memory_order_relaxed)) {
        return First(range);
      }
    }
    return Help();
  }

 private:
  // A cache line and the one that is fetched with it.
  struct alignas(128) Share {
    std::atomic<std::uint64_t> range{0};  // first piece left, and the end
  };

  static std::uint64_t Pack(std::int64_t first, std::int64_t last) {
    return static_cast<std::uint64_t>(last) << 32 | static_cast<std::uint64_t>(first);
  }
  static std::int64_t First(std::uint64_t range) {
    return static_cast<std::int64_t>(range & 0xffffffff);
  }
  static std::int64_t Last(std::uint64_t range) { return static_cast<std::int64_t>(range >> 32); }

  std::int64_t Help() {
    while (true) {
      std::int64_t fullest = -1;
      std::uint64_t range = 0;
      std::int64_t most = 0;
      for (std::int64_t t = 0; t < threads_; ++t) {
        const std::uint64_t seen = at(t).load(std::memory_order_relaxed);
        if (Last(seen) - First(seen) > most) {
          most = Last(seen) - First(seen);
          fullest = t;
          range = seen;
        }
      }
      if (fullest < 0) {
        return -1;
      }
      if (at(fullest).compare_exchange_strong(
              range, Pack(First(range), Last(range) - 1), std::memory_order_relaxed)) {
        return Last(range) - 1;
      }
    }
  }

  std::atomic<std::uint64_t>& at(std::int64_t thread) {
    return shares_[static_cast<std::size_t>(thread)].range;
  }

  std::int64_t threads_;
  std::unique_ptr<Share[]> shares_;
};

}  // namespace inferd::ops
