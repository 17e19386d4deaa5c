// SPDX-License-Identifier: Apache-2.0
// Memory that the devices of one host reach in each other, for messages too small to be worth more
// than one launch. Every rank gives one region; kernels of this folder write a message into their
// own, meet their peers, and read the peers'. Every rank must launch the same kernels with the same
// counts, as with any collective.
#pragma once

#include "kernels/cuda/stream.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace inferd::kernels::cuda {

inline constexpr int kMaxReduceRanks = 8;
/// Most thread blocks of a call; each has its own flags and its own part of the region.
inline constexpr int kReduceBlocks = 32;

struct PeerRegions {
  /// Of all ranks, in this rank's address space.
  std::byte* region[kMaxReduceRanks] = {};
  int rank = 0;
  int ranks = 1;
  std::int64_t max_count = 0;  // as given to ReduceRegionBytes
  /// Not zero: no kernel waits for peers any more; what it then gives is undefined. Host-mapped or
  /// device memory.
  const std::uint32_t* abort = nullptr;

  bool Valid() const {
    return ranks >= 1 && ranks <= kMaxReduceRanks && rank >= 0 && rank < ranks && max_count > 0;
  }
};

/// Bytes of the region each rank shares with its peers, for messages of up to max_count floats. It
/// must be zero before the first call, on all ranks.
std::size_t ReduceRegionBytes(std::int64_t max_count);

constexpr std::int64_t RoundUpToFour(std::int64_t count) { return (count + 3) / 4 * 4; }

/// Floats that one block has for a message.
constexpr std::int64_t BlockRoom(std::int64_t max_count) {
  return RoundUpToFour((max_count + kReduceBlocks - 1) / kReduceBlocks);
}

/// How many of `count` floats each of `blocks` blocks takes.
constexpr std::int64_t BlockShare(std::int64_t count, int blocks) {
  return RoundUpToFour((count + blocks - 1) / blocks);
}

/// Blocks for a message of `count` floats: as many as have enough to do.
constexpr int BlocksFor(std::int64_t count, std::int64_t max_count) {
  constexpr std::int64_t kFloatsPerBlock = 1024;
  return BlockRoom(max_count) < kFloatsPerBlock
             ? kReduceBlocks
             : static_cast<int>(std::clamp<std::int64_t>(
                   (count + kFloatsPerBlock - 1) / kFloatsPerBlock, 1, kReduceBlocks));
}

}  // namespace inferd::kernels::cuda
