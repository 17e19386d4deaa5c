// SPDX-License-Identifier: Apache-2.0
// The end of one call or join on the steady clock.
#pragma once

#include <algorithm>
#include <chrono>

namespace inferd::comm {

/// A point in time; cheap to copy.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadline(std::chrono::milliseconds allowed)
      : allowed_(allowed), end_(Clock::now() + allowed) {}

  bool Passed() const { return Clock::now() >= end_; }
  Clock::time_point end() const { return end_; }
  /// What the call was given in all; for messages.
  std::chrono::milliseconds allowed() const { return allowed_; }
  /// Whole milliseconds left, rounded up, between 0 and `most`; for poll().
  int LeftMs(int most) const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
    return static_cast<int>(std::clamp<decltype(left)>(left, 0, most));
  }

 private:
  std::chrono::milliseconds allowed_;
  Clock::time_point end_;
};

}  // namespace inferd::comm
