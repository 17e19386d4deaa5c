// SPDX-License-Identifier: Apache-2.0
// Threads for what is too long for an I/O thread: JSON, templates, tokenising. A lane of its own
// for light work keeps /metrics and /v1/models answering while long prompts are tokenised, and
// one for what waits for minutes holds up neither. All lanes are bounded.
#pragma once

#include "base/bounded_queue.h"

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace inferd::api {

class RequestPool {
 public:
  using Job = std::move_only_function<void()>;
  enum class Lane { kHeavy, kLight, kSlow };

  RequestPool(int threads, std::size_t queue);
  /// Runs what is queued, then joins.
  ~RequestPool();
  RequestPool(const RequestPool&) = delete;
  RequestPool& operator=(const RequestPool&) = delete;

  /// Any thread. False when the lane is full: answer 429.
  bool TryRun(Lane lane, Job job);

 private:
  static void Work(base::BoundedQueue<Job>* queue);

  base::BoundedQueue<Job> heavy_;
  base::BoundedQueue<Job> light_;
  base::BoundedQueue<Job> slow_;
  std::vector<std::jthread> threads_;
};

}  // namespace inferd::api
