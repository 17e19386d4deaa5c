// SPDX-License-Identifier: Apache-2.0
// A replica that gives its memory back for a while. Asleep it is as one whose ranks are all away:
// waking is the recovery of engine-contract.md.
#include "base/error.h"
#include "base/log.h"
#include "leader/replica.h"

namespace inferd::leader {

void Replica::Sleep(int level, bool keep_requests) {
  mailbox_.Post(SleepEvent{sleeps_asked_.fetch_add(1) + 1, level, keep_requests});
}

void Replica::WakeUp() { mailbox_.Post(WakeEvent{}); }

void Replica::Handle(SleepEvent& event) {
  if (!was_ready_ || phase_.load() == Phase::kFailed) {
    return;
  }
  asleep_ = true;
  sleep_number_ = event.number;
  keep_requests_ = event.keep_requests;
  ++generation_;
  sent_.clear();
  if (!keep_requests_) {
    FailAll(Unavailable("the server was put to sleep"));
  }
  scheduler_.Reset(generation_);
  ranks_.Sleep(generation_, event.level >= 2 || !options_.keeps_weights_asleep);
}

void Replica::Handle(WakeEvent& /*event*/) {
  if (!asleep_) {
    return;
  }
  asleep_ = false;
  waking_ = true;
  fault_began_ns_ = clock_.NowNs();
  phase_.store(Phase::kRecovering);
  ranks_.Wake();
}

/// While asleep, after the ranks were looked at.
void Replica::CheckSleep() {
  if (sleeps_done_.load() != sleep_number_ && ranks_.at_rest()) {
    log::Info("leader", "replica {} is asleep", options_.ranks.replica);
    phase_.store(Phase::kAsleep);
    sleeps_done_.store(sleep_number_);
  }
  if (!keep_requests_ && !table_.empty()) {  // taken in as it fell asleep
    FailAll(Unavailable("the server was put to sleep"));
  }
  scheduler_.ExpireDeadlines();
}

}  // namespace inferd::leader
