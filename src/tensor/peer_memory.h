// SPDX-License-Identifier: Apache-2.0
// Exchanges of small messages through memory that the devices of one host reach in each other: one
// launch each, where a collective library takes several times as long. comm joins it without
// knowing CUDA; ops/cuda has it.
#pragma once

#include "inferd/result.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace inferd::tensor {

/// full [rows, sum of columns] = the ranks' mine [rows, columns[rank]] side by side; without a full
/// this rank only takes part.
struct ColumnsTask {
  const float* mine = nullptr;
  std::span<const std::int64_t> columns;  // of each rank
  std::int64_t rows = 0;
  float* full = nullptr;
};

/// x [rows, k] += what was exchanged, then y [rows, k] = the RMS norm of x.
struct ThenNorm {
  float* x = nullptr;
  const float* weight = nullptr;
  float eps = 0;
  std::int64_t k = 0;
  float* y = nullptr;
};

/// Of one group and one generation, which this rank's device has left when it is destroyed; what
/// peers may still read then is freed later (PeerAccess). Every call adds one launch to the
/// device's queue; false, at all ranks alike: the message is longer than this is good for, and
/// nothing has been done. kInternal: the launch failed. The device's thread, but for Abort. All
/// ranks call the same with the same sizes.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;

  /// data [count] = sum over the ranks in rank order, in place.
  virtual Result<bool> Sum(float* data, std::int64_t count) = 0;
  virtual Result<bool> Gather(const ColumnsTask& task) = 0;
  /// Sum of the ranks' part [rows, k], or Gather (without its `full`), and the norm behind it; the
  /// bits of the two.
  virtual Result<bool> SumThenNorm(const float* part, std::int64_t rows, const ThenNorm& norm) = 0;
  virtual Result<bool> GatherThenNorm(const ColumnsTask& task, const ThenNorm& norm) = 0;

  /// Thread-safe: nothing in the queue waits for a peer from now on; what it gives is undefined.
  virtual void Abort() = 0;
};

/// What a rank shows its peers so that they reach its memory.
using PeerCard = std::array<std::byte, 128>;

/// Owned by the device, for one group of it at a time. One thread: the device's. A rank's own
/// memory of a generation that ended is freed once all ranks have offered some for a later one:
/// peers that stayed longer may have read it till then. Without a later one it is the process's end
/// that frees it, where other processes reach it.
class PeerAccess {
 public:
  virtual ~PeerAccess() = default;

  /// Makes this rank's memory for the next Open: anew each time, so that no peer of an older
  /// generation reaches it. Waits until the device has done what it was given, `within` that time
  /// or fails with kDeadlineExceeded: the device is broken then. So a rank that shows its
  /// card reads its peers' older memory no more; nothing of older generations may be given to the
  /// device from then on. kUnavailable: memory cannot be shared, and why.
  virtual Result<PeerCard> Offer(std::chrono::milliseconds within) = 0;
  /// cards[r] is what rank r's Offer gave. Nobody may use it before all ranks have come back from
  /// this. kUnavailable: a peer's memory is not to be reached, and why.
  virtual Result<std::unique_ptr<PeerMemory>> Open(int rank, std::span<const PeerCard> cards) = 0;
};

}  // namespace inferd::tensor
