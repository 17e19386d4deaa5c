// SPDX-License-Identifier: Apache-2.0
#include "ops/thread_team.h"

#include "base/check.h"
#include "base/error.h"

#include <sched.h>

#include <chrono>
#include <cstring>

namespace inferd::ops {
namespace {

// About 10 us of pure spinning covers the gap between two regions of a step; after that the core is
// offered to others.
constexpr int kPureSpins = 256;
constexpr int kYieldsPerClock = 64;
constexpr std::chrono::microseconds kParkAfter{2000};

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadTeam::ThreadTeam(int threads, std::span<const int> cpus)
    : size_(threads),
      cpus_(cpus.begin(), cpus.end()),
      slots_(std::make_unique<Slot[]>(static_cast<std::size_t>(threads))) {}

Result<std::unique_ptr<ThreadTeam>> ThreadTeam::Make(int threads, std::span<const int> cpus) {
  if (threads < 1 || threads > kMaxThreads) {
    return InvalidArgument("{} threads: use 1 to {}", threads, kMaxThreads);
  }
  if (!cpus.empty() && cpus.size() < static_cast<std::size_t>(threads)) {
    return InvalidArgument("{} CPUs for {} threads: name one CPU per thread", cpus.size(), threads);
  }
  std::unique_ptr<ThreadTeam> team(new ThreadTeam(threads, cpus));
  for (int i = 1; i < threads; ++i) {
    Slot& slot = team->slots_[static_cast<std::size_t>(i)];
    slot.team = team.get();
    slot.index = i;
    if (const int code = pthread_create(&slot.handle, nullptr, Entry, &slot); code != 0) {
      return ResourceExhausted(
          "cannot start compute thread {} of {}: {}", i, threads, std::strerror(code));
    }
    team->started_ = i + 1;
  }
  return team;
}

ThreadTeam::~ThreadTeam() {
  stop_ = true;
  Publish();
  for (int i = 1; i < started_; ++i) {
    pthread_join(slots_[static_cast<std::size_t>(i)].handle, nullptr);
  }
}

void* ThreadTeam::Entry(void* slot) {
  auto* self = static_cast<Slot*>(slot);
  self->team->Loop(self->index);
  return nullptr;
}

// A CPU that may not be used (a container's limit) is no reason to fail: the thread then floats.
void ThreadTeam::Pin(int thread) const {
  if (cpus_.empty()) {
    return;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpus_[static_cast<std::size_t>(thread)]), &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

void ThreadTeam::Loop(int thread) {
  Pin(thread);
  Slot& slot = slots_[static_cast<std::size_t>(thread)];
  std::uint32_t seen = 0;
  while (true) {
    seen = WaitForWork(seen);
    if (stop_) {
      return;
    }
    body_(context_, thread);
    slot.done.store(seen, std::memory_order_release);
  }
}

std::uint32_t ThreadTeam::WaitForWork(std::uint32_t seen) {
  for (int spin = 0; spin < kPureSpins; ++spin) {
    if (const std::uint32_t epoch = epoch_.load(std::memory_order_acquire); epoch != seen) {
      return epoch;
    }
    Pause();
  }
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < kYieldsPerClock; ++i) {
      if (const std::uint32_t epoch = epoch_.load(std::memory_order_acquire); epoch != seen) {
        return epoch;
      }
      Pause();
      sched_yield();
    }
  } while (std::chrono::steady_clock::now() - start < kParkAfter);
  // Either Publish() sees the raised count, or this thread sees the new epoch: both sides are
  // sequentially consistent.
  std::unique_lock lock(mutex_);
  parked_.fetch_add(1, std::memory_order_seq_cst);
  std::uint32_t epoch = 0;
  wake_.wait(lock, [&] { return (epoch = epoch_.load(std::memory_order_seq_cst)) != seen; });
  parked_.fetch_sub(1, std::memory_order_seq_cst);
  return epoch;
}

void ThreadTeam::Publish() {
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) > 0) {
    const std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
}

void ThreadTeam::WaitForThread(const Slot& slot, std::uint32_t epoch) const {
  for (int spin = 0; slot.done.load(std::memory_order_acquire) != epoch; ++spin) {
    Pause();
    if (spin > kPureSpins) {
      sched_yield();
    }
  }
}

void ThreadTeam::Run(Body body, void* context) {
  if (!cpus_.empty() && (!caller_pinned_ || pthread_equal(caller_, pthread_self()) == 0)) {
    caller_ = pthread_self();
    caller_pinned_ = true;
    Pin(0);
  }
  if (size_ == 1) {
    body(context, 0);
    return;
  }
  INFERD_CHECK_MSG(!running_, "parallel regions do not nest");
  running_ = true;
  body_ = body;
  context_ = context;
  Publish();
  const std::uint32_t epoch = epoch_.load(std::memory_order_relaxed);
  body(context, 0);
  for (int i = 1; i < size_; ++i) {
    WaitForThread(slots_[static_cast<std::size_t>(i)], epoch);
  }
  running_ = false;
}

void ThreadTeam::ForEach(std::int64_t count,
                         void* context,
                         void (*fn)(void* context, std::int64_t index)) {
  std::atomic<std::int64_t> next{0};
  Run([&](int) {
    for (std::int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      fn(context, i);
    }
  });
}

}  // namespace inferd::ops
