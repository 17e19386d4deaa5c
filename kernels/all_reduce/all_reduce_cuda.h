// SPDX-License-Identifier: Apache-2.0
// Sums of small messages over the devices of one host, through each other's memory: y = the sum
// over the ranks of x, added in rank order, so all ranks get the same bits every time. One-shot
// reads every peer's whole message and has the least latency; two-shot reads 2 / ranks of it. Every
// rank must launch the same calls with the same counts, as with any collective.
#pragma once

#include "kernels/cuda/stream.h"

#include <cstddef>
#include <cstdint>

namespace inferd::kernels::cuda {

inline constexpr int kMaxReduceRanks = 8;
/// Thread blocks of every call; each has its own flags.
inline constexpr int kReduceBlocks = 32;

/// Bytes of the region each rank shares with its peers, for messages of up to max_count floats. It
/// must be zero before the first call, on all ranks.
std::size_t ReduceRegionBytes(std::int64_t max_count);

struct AllReduceArgs {
  /// Regions of all ranks, in this rank's address space.
  std::byte* region[kMaxReduceRanks] = {};
  int rank = 0;
  int ranks = 1;
  std::int64_t max_count = 0;  // as given to ReduceRegionBytes
  const float* x = nullptr;
  float* y = nullptr;  // may be x
  std::int64_t count = 0;
  /// Not zero: stop waiting for peers; what y then holds is undefined. Host-mapped or device
  /// memory.
  const std::uint32_t* abort = nullptr;
};
Status AllReduceOneShot(const AllReduceArgs& args, Stream stream);
Status AllReduceTwoShot(const AllReduceArgs& args, Stream stream);

}  // namespace inferd::kernels::cuda
