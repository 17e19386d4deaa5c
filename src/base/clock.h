// SPDX-License-Identifier: Apache-2.0
// Time as an interface, so that schedules and deadlines can be tested on a virtual clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace inferd::base {

inline constexpr std::int64_t kNsPerMs = 1'000'000;

/// Monotonic time in nanoseconds; never jumps with the wall clock. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::int64_t NowNs() const = 0;
  std::int64_t NowMs() const { return NowNs() / kNsPerMs; }
};

/// CLOCK_MONOTONIC.
class SteadyClock : public Clock {
 public:
  std::int64_t NowNs() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  /// The process-wide instance.
  static const SteadyClock& Get() {
    static const SteadyClock clock;
    return clock;
  }
};

/// A clock that stands still until told; for tests and simulation. Not thread-safe.
class FakeClock : public Clock {
 public:
  std::int64_t NowNs() const override { return now_ns_; }
  void AdvanceNs(std::int64_t ns) { now_ns_ += ns; }
  void AdvanceMs(std::int64_t ms) { now_ns_ += ms * kNsPerMs; }

 private:
  std::int64_t now_ns_ = 0;
};

}  // namespace inferd::base
