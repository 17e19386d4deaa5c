// SPDX-License-Identifier: Apache-2.0
// Puts all replicas of a server to sleep together, and wakes them.
#pragma once

#include "inferd/result.h"
#include "leader/inference_service.h"
#include "leader/replica.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace inferd::leader {

/// Thread-safe. Sleep and WakeUp block; one of them at a time, others are refused. Only a Sleep
/// that waits for running requests gives way to WakeUp.
class Sleeper {
 public:
  /// kWaiting: nothing is taken, and what runs may end. WakeUp calls that off.
  enum class State : std::uint8_t { kAwake, kWaiting, kFalling, kAsleep, kWaking };

  /// `replicas` outlives this and is complete before Sleep. `give_up`: the server ends.
  Sleeper(const std::vector<std::unique_ptr<Replica>>* replicas, std::function<bool()> give_up)
      : replicas_(replicas), give_up_(std::move(give_up)) {}

  /// As InferenceService's.
  Result<> Sleep(int level, SleepMode mode);
  Result<> WakeUp();

  State state() const { return state_.load(); }
  int level() const { return level_.load(); }  // 0: awake, or on the way there

  /// For a watchdog thread: replicas that were not back within WakeUp's time may be so later.
  void Settle();

 private:
  Result<> WaitUntil(const std::function<bool()>& done,
                     std::chrono::milliseconds most,
                     std::string_view what) const;
  Result<> WaitForRequests();
  bool All(bool (*is)(const Replica& replica)) const;
  bool AllReady() const;

  const std::vector<std::unique_ptr<Replica>>* const replicas_;
  const std::function<bool()> give_up_;
  std::atomic<State> state_{State::kAwake};
  std::atomic<int> level_{0};  // written under busy_
  std::mutex busy_;
};

}  // namespace inferd::leader
