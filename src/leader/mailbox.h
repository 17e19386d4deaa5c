// SPDX-License-Identifier: Apache-2.0
// Mailbox: many writers, one reader that takes all there is at once. The edge of an engine thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

namespace inferd::leader {

/// Thread-safe. Not bounded here: what enters is bounded at its source (admission counts, one
/// stream per worker).
template <class T>
class Mailbox {
 public:
  void Post(T message) {
    {
      const std::lock_guard lock(mutex_);
      messages_.push_back(std::move(message));
    }
    arrived_.notify_one();
  }

  /// Swaps all messages into `out` (cleared first); waits at most `timeout` for the first.
  void TakeAll(std::vector<T>* out, std::chrono::milliseconds timeout) {
    out->clear();
    std::unique_lock lock(mutex_);
    if (timeout.count() > 0) {
      arrived_.wait_for(lock, timeout, [this] { return !messages_.empty(); });
    }
    messages_.swap(*out);
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<T> messages_;
};

}  // namespace inferd::leader
