// SPDX-License-Identifier: Apache-2.0
// Waiting for a word in shared memory: spin, then yield, then sleep on a futex; and the fault that
// ends every wait.
#pragma once

#include "comm/deadline.h"
#include "comm/shm_layout.h"
#include "comm/shm_segment.h"
#include "inferd/result.h"

#include <cstdint>
#include <string>

namespace inferd::comm {

/// Why a group broke. Written once into the segment, so that all ranks tell the same story.
struct Fault {
  Code code = Code::kAborted;
  int culprit =
      0;  ///< the rank that is late, gone or out of step; for kAborted the one that aborted
  int reporter = 0;  ///< the rank that noticed

  std::uint32_t Pack() const;
  static Fault Unpack(std::uint32_t word);
};

/// Publishes `value` and wakes who sleeps on it.
void RaiseSignal(SharedWord& value, SharedWord& parked, std::uint32_t to);
/// Wakes the sleepers of a word without changing it.
void WakeAll(SharedWord& word);

/// One rank's way of waiting. One caller at a time, except SetFault.
class ShmWaiter {
 public:
  ShmWaiter(ShmSegment& segment, int rank, int size);

  /// Whether the group is broken.
  bool Broken() const { return fault_.load(std::memory_order_relaxed) != 0; }
  /// The error of a broken group.
  Error BrokenError(std::string_view doing) const;
  /// Breaks the group; the first fault stays. Wakes nobody: see WakeAll.
  void SetFault(const Fault& fault);

  /// While true, a rank without a lock has not come yet (rank 0 excepted: it made the segment);
  /// later it is dead.
  void set_joining(bool joining) { joining_ = joining; }

  /// Until int32(value - target) >= 0. `rank` is who must raise it; `doing` names the call in
  /// errors.
  Result<> AwaitAtLeast(SharedWord& value,
                        SharedWord& parked,
                        std::uint32_t target,
                        int rank,
                        const Deadline& deadline,
                        std::string_view doing) {
    if (Reached(value.load(std::memory_order_acquire), target)) [[likely]] {
      return {};
    }
    return AwaitSlow(value, parked, target, rank, deadline, doing);
  }

 private:
  static bool Reached(std::uint32_t value, std::uint32_t target) {
    return static_cast<std::int32_t>(value - target) >= 0;
  }
  Result<> AwaitSlow(SharedWord& value,
                     SharedWord& parked,
                     std::uint32_t target,
                     int rank,
                     const Deadline& deadline,
                     std::string_view doing);
  /// True when the target was reached without sleeping.
  bool SpinAndYield(const SharedWord& value, std::uint32_t target) const;

  ShmSegment& segment_;
  SharedWord& fault_;
  const int rank_;
  const bool oversubscribed_;
  bool joining_ = false;
};

}  // namespace inferd::comm
