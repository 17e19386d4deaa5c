// SPDX-License-Identifier: Apache-2.0
#include "api/http/request_pool.h"

#include "base/check.h"

#include <chrono>
#include <exception>
#include <utility>

namespace inferd::api {
namespace {

constexpr std::size_t kSlowQueue = 8;
constexpr int kSlowThreads = 2;  // /wake_up calls off a /sleep that waits

}  // namespace

RequestPool::RequestPool(int threads, std::size_t queue)
    : heavy_(queue), light_(queue), slow_(kSlowQueue) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Work(&heavy_); });
  }
  threads_.emplace_back([this] { Work(&light_); });
  for (int i = 0; i < kSlowThreads; ++i) {
    threads_.emplace_back([this] { Work(&slow_); });
  }
}

RequestPool::~RequestPool() {
  heavy_.Close();
  light_.Close();
  slow_.Close();
}

bool RequestPool::TryRun(Lane lane, Job job) {
  auto& queue = lane == Lane::kHeavy ? heavy_ : lane == Lane::kLight ? light_ : slow_;
  return queue.TryPush(std::move(job));
}

void RequestPool::Work(base::BoundedQueue<Job>* queue) {
  try {
    for (;;) {
      auto job = queue->PopFor(std::chrono::seconds(10));
      if (job) {
        (*job)();
      } else if (queue->closed()) {
        return;
      }
    }
  } catch (const std::exception& error) {  // only a bug or an exhausted heap gets here
    base::CheckFailed("request thread", error.what());
  }
}

}  // namespace inferd::api
