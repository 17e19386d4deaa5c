// SPDX-License-Identifier: Apache-2.0
#include "leader/sleeper.h"

#include "base/error.h"

#include <poll.h>

#include <algorithm>
#include <string_view>

namespace inferd::leader {
namespace {

constexpr int kPollMs = 5;
constexpr std::chrono::milliseconds kFallMost{60'000};  // longer than a worker that is killed

Error Busy() {
  return FailedPrecondition(
      "the server is falling asleep or waking up; GET /readyz tells when it has");
}

}  // namespace

bool Sleeper::All(bool (*is)(const Replica& replica)) const {
  return std::all_of(
      replicas_->begin(), replicas_->end(), [is](const auto& replica) { return is(*replica); });
}

bool Sleeper::AllReady() const {
  return All([](const Replica& replica) { return replica.phase() == Phase::kReady; });
}

Result<> Sleeper::WaitUntil(const std::function<bool()>& done,
                            std::chrono::milliseconds most,
                            std::string_view what) const {
  const auto deadline = std::chrono::steady_clock::now() + most;
  while (!done()) {
    if (give_up_()) {
      return Unavailable("the server is shutting down");
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return DeadlineExceeded("{} within {} s", what, most.count() / 1000);
    }
    ::poll(nullptr, 0, kPollMs);
  }
  return {};
}

Result<> Sleeper::Sleep(int level, SleepMode mode) {
  const std::unique_lock lock(busy_, std::try_to_lock);
  if (!lock.owns_lock()) {
    return Busy();
  }
  if (state_.load() == State::kAsleep && level <= level_.load()) {
    return {};
  }
  if (state_.load() == State::kAwake && mode == SleepMode::kWait) {
    INFERD_TRY(WaitForRequests());
  }
  state_.store(State::kFalling);
  level_.store(level);
  for (const auto& replica : *replicas_) {
    replica->Sleep(level, mode == SleepMode::kKeep);
  }
  state_.store(State::kAsleep);
  return WaitUntil([this] { return All([](const Replica& r) { return r.rested(); }); },
                   kFallMost,
                   "the workers have not given their memory back");
}

/// With the door closed. After an error the server is awake.
Result<> Sleeper::WaitForRequests() {
  state_.store(State::kWaiting);
  const auto over = [this] {
    return state_.load() != State::kWaiting ||
           All([](const Replica& r) { return !r.has_requests(); });
  };
  Result<> ended =
      WaitUntil(over, std::chrono::milliseconds(kSleepWaitMs), "running requests did not end");
  State waiting = State::kWaiting;
  if (!state_.compare_exchange_strong(waiting, ended.ok() ? State::kFalling : State::kAwake)) {
    return FailedPrecondition("the server was woken before running requests had ended");
  }
  return ended;
}

Result<> Sleeper::WakeUp() {
  if (State waiting = State::kWaiting; state_.compare_exchange_strong(waiting, State::kAwake)) {
    return {};
  }
  const std::unique_lock lock(busy_, std::try_to_lock);
  if (!lock.owns_lock()) {
    return Busy();
  }
  if (state_.load() == State::kAwake) {
    return {};
  }
  state_.store(State::kWaking);
  for (const auto& replica : *replicas_) {
    replica->WakeUp();
  }
  level_.store(0);
  INFERD_TRY(WaitUntil([this] { return AllReady(); }, kWakeMost, "the model was not back"));
  state_.store(State::kAwake);
  return {};
}

void Sleeper::Settle() {
  State waking = State::kWaking;
  if (state_.load() == waking && AllReady()) {
    state_.compare_exchange_strong(waking, State::kAwake);
  }
}

}  // namespace inferd::leader
