// SPDX-License-Identifier: Apache-2.0
// Spreads the blocks of a grid over a pool of host threads. One grid uses the pool at a time;
// others (from other streams) run on their caller's thread meanwhile.
#include "kernels/simt/engine.h"
#include "kernels/simt/engine_blocks.h"
#include "kernels/simt/settings.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace inferd::simt {
namespace {

class Pool {
 public:
  explicit Pool(int helpers) {
    for (int i = 0; i < helpers; ++i) {
      threads_.emplace_back([this] { Serve(); });
    }
  }
  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) {
      thread.join();
    }
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Runs `job` on every helper and on the caller; false when the pool is busy.
  bool TryRun(const std::function<void()>& job) {
    const std::unique_lock owner(owner_, std::try_to_lock);
    if (!owner.owns_lock()) {
      return false;
    }
    {
      const std::lock_guard lock(mutex_);
      job_ = &job;
      busy_ = threads_.size();
      ++generation_;
    }
    wake_.notify_all();
    job();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
    return true;
  }

 private:
  void Serve() {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) {
        return;
      }
      seen = generation_;
      const auto* job = job_;
      lock.unlock();
      (*job)();
      lock.lock();
      if (--busy_ == 0) {
        done_.notify_one();
      }
    }
  }

  std::mutex owner_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void()>* job_ = nullptr;
  std::uint64_t generation_ = 0;
  std::size_t busy_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

Pool& ThePool() {
  static Pool pool(GetSettings().threads - 1);
  return pool;
}

// Below this many CUDA threads waking the helpers costs more than they bring.
constexpr std::uint64_t kWorthSharing = 2048;

}  // namespace

void RunGrid(const char* name,
             dim3 grid,
             dim3 block,
             std::size_t shared_bytes,
             const std::function<void()>& body) {
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  const std::uint64_t threads = blocks * block.x * block.y * block.z;
  const bool backwards = GetSettings().order == Order::kReverse;
  CountLaunch(threads);
  std::atomic<std::uint64_t> taken{0};
  const std::function<bool(std::uint64_t*)> next = [&](std::uint64_t* number) {
    const std::uint64_t i = taken.fetch_add(1, std::memory_order_relaxed);
    *number = backwards ? blocks - 1 - i : i;
    return i < blocks;
  };
  const std::function<void()> job = [&] { RunBlocks(name, grid, block, shared_bytes, body, next); };
  if (GetSettings().threads == 1 || blocks == 1 || threads < kWorthSharing ||
      !ThePool().TryRun(job)) {
    job();
  }
}

}  // namespace inferd::simt
