// SPDX-License-Identifier: Apache-2.0
// The threads of one rank. Run() is one parallel region: the caller is thread 0, the others spin
// for the next region and park after a while without work. One owner calls Run(); it is not
// reentrant.
#pragma once

#include "inferd/result.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace inferd::ops {

class ThreadTeam {
 public:
  using Body = void (*)(void* context, int thread);

  static constexpr int kMaxThreads = 256;

  /// Starts threads - 1 threads. `cpus` pins thread i to cpus[i] (the caller at its first Run);
  /// empty: not pinned.
  static Result<std::unique_ptr<ThreadTeam>> Make(int threads, std::span<const int> cpus);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return size_; }

  /// body(context, thread) on every thread; returns when all are done. With one thread it is a
  /// plain call.
  void Run(Body body, void* context);

  /// fn(context, i) for i in [0, count), each taken by whichever thread is free.
  void ForEach(std::int64_t count, void* context, void (*fn)(void* context, std::int64_t index));

  template <class F>
  void Run(F&& body) {
    Run([](void* context,
           int thread) { (*static_cast<std::remove_reference_t<F>*>(context))(thread); },
        &body);
  }

 private:
  // Each thread writes its own line only; 128 bytes because the adjacent-line prefetcher pulls
  // lines in pairs.
  struct alignas(128) Slot {
    std::atomic<std::uint32_t> done{0};
    pthread_t handle{};
    ThreadTeam* team = nullptr;
    int index = 0;
  };

  ThreadTeam(int threads, std::span<const int> cpus);
  static void* Entry(void* slot);
  void Loop(int thread);
  std::uint32_t WaitForWork(std::uint32_t seen);
  void WaitForThread(const Slot& slot, std::uint32_t epoch) const;
  void Pin(int thread) const;
  void Publish();

  const int size_;
  const std::vector<int> cpus_;
  std::unique_ptr<Slot[]> slots_;
  int started_ = 1;  // threads that exist, the caller included
  pthread_t caller_{};
  bool caller_pinned_ = false;

  Body body_ = nullptr;  // written by the caller before it publishes an epoch
  void* context_ = nullptr;
  bool stop_ = false;
  bool running_ = false;  // the caller's own; catches a region inside a region

  alignas(128) std::atomic<std::uint32_t> epoch_{0};
  alignas(128) std::atomic<int> parked_{0};
  std::mutex mutex_;  // for parked threads only
  std::condition_variable wake_;
};

}  // namespace inferd::ops
