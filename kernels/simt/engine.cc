// SPDX-License-Identifier: Apache-2.0
#include "kernels/simt/engine.h"

#include "kernels/simt/engine_blocks.h"
#include "kernels/simt/fiber_switch.h"
#include "kernels/simt/runtime_state.h"
#include "kernels/simt/settings.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

namespace inferd::simt {

constinit thread_local Fiber* t_fiber = nullptr;
constinit thread_local Block* t_block = nullptr;

namespace {

constexpr std::size_t kArenaBytes = std::size_t{4} << 20;
constexpr std::size_t kDynamicBytes = std::size_t{256} << 10;
constexpr int kMaxThreads = 1024;
constexpr std::size_t kMaxVariables = 256;

// Everything one host thread needs to run blocks, one after the other.
struct Worker {
  Fiber host;
  std::vector<std::unique_ptr<Fiber>> fibers;
  Warp warps[kMaxThreads / 32];
  Block block;
  int threads = 0, alive = 0, arrived = 0, num_warps = 0;
  Location barrier_at;
  std::uint64_t barriers_passed = 0;
  char barrier_sync[2] = {};
  char launch_sync = 0;
  int any = 0, every = 1, count = 0;
  int votes[3] = {};
  const std::function<void()>* body = nullptr;
  Fiber* stalled = nullptr;  // gave the host thread back, for a while
  const char* kernel = "?";
  char* dynamic = nullptr;
  struct Variable {
    const void* tag;
    void* data;
    std::size_t bytes;
  };
  Variable variables[kMaxVariables];  // no vector: its functions would be seen as the kernel's
  std::size_t num_variables = 0;
  char* arena = nullptr;
  std::size_t arena_used = 0;
  std::uint64_t random = 1;
  Counters counters;
};

constinit thread_local Worker* t_worker = nullptr;

std::atomic<std::uint64_t> g_launches, g_threads, g_meetings, g_barriers;

SIMT_UNTRACED void SwitchTo(Fiber* to) {
  Fiber* from = t_fiber;
  if (from == to) {
    return;
  }
  t_fiber = to;
  SwitchFiber(from, to);
}

SIMT_UNTRACED std::uint32_t Random(Worker& w) {
  w.random ^= w.random << 13;
  w.random ^= w.random >> 7;
  w.random ^= w.random << 17;
  return static_cast<std::uint32_t>(w.random >> 16);
}

SIMT_UNTRACED int PickLane(Worker& w, std::uint32_t runnable) {
  switch (GetSettings().order) {
    case Order::kForward:
      return std::countr_zero(runnable);
    case Order::kReverse:
      return 31 - std::countl_zero(runnable);
    case Order::kRandom:
      break;
  }
  for (std::uint32_t skip = Random(w) % static_cast<unsigned>(std::popcount(runnable)); skip > 0;
       --skip) {
    runnable &= runnable - 1;
  }
  return std::countr_zero(runnable);
}

// The next fiber to run, null when none can. Stays in the warp as long as it has work, except in
// random order.
SIMT_UNTRACED Fiber* Pick(Worker& w) {
  const Order order = GetSettings().order;
  const int n = w.num_warps;
  int start = t_fiber == &w.host ? -1 : static_cast<int>(t_fiber->warp - w.warps);
  int step = 1;
  if (order == Order::kRandom) {
    start = static_cast<int>(Random(w) % static_cast<unsigned>(n));
  } else if (order == Order::kReverse) {
    step = n - 1;
    start = start < 0 ? n - 1 : start;
  } else {
    start = std::max(start, 0);
  }
  for (int i = 0; i < n; ++i) {
    Warp& warp = w.warps[(start + i * step) % n];
    if (warp.runnable != 0) {
      return warp.lanes[PickLane(w, warp.runnable)];
    }
  }
  return nullptr;
}

SIMT_UNTRACED void Wake(Fiber* fiber) {
  fiber->state = FiberState::kRunnable;
  fiber->warp->runnable |= 1U << fiber->lane;
}

SIMT_UNTRACED void Wait(Worker& w, FiberState state, const Location& where) {
  t_fiber->state = state;
  t_fiber->warp->runnable &= ~(1U << t_fiber->lane);
  Fiber* next = Pick(w);
  if (next == nullptr) {
    Fail("deadlock: no thread of the block can go on", where);
  }
  SwitchTo(next);
}

// After a meeting: in order fwd the last arriver simply goes on, in the others somebody else may.
SIMT_UNTRACED void Yield(Worker& w) {
  if (GetSettings().order != Order::kForward) {
    SwitchTo(Pick(w));
  }
}

SIMT_UNTRACED void Exit(Worker& w) {
  Fiber* self = t_fiber;
  const std::uint32_t bit = 1U << self->lane;
  self->state = FiberState::kExited;
  self->warp->runnable &= ~bit;
  self->warp->alive &= ~bit;
  --w.alive;
  if (w.arrived != 0) {
    Fail("a thread exits while others wait at __syncthreads", self->last_sync);
  }
  if (!self->copies.empty()) {
    Fail("a thread exits with a cp.async that it never waited for", self->last_sync);
  }
  Fiber* next = Pick(w);
  if (next == nullptr) {
    if (w.alive != 0) {
      Fail("deadlock: the last runnable thread exited, others still wait", self->last_sync);
    }
    next = &w.host;
  }
  SwitchTo(next);
}

SIMT_UNTRACED void FiberMain() {
  StartedFiber(t_fiber);
  for (;;) {
    Worker& w = *t_worker;
    AcquireSync(&w.launch_sync);
    (*w.body)();
    ReleaseSync(&w.launch_sync);
    Exit(w);
  }
}

// Workers whose threads have ended, for the next ones: the race detector makes a fiber in
// milliseconds. They live until the process ends.
struct FreeWorkers {
  std::mutex mutex;
  std::vector<Worker*> workers;
};

FreeWorkers& TheFreeWorkers() {
  static auto& free = *std::make_unique<FreeWorkers>().release();
  return free;
}

struct Lease {
  ~Lease() {
    FreeWorkers& free = TheFreeWorkers();
    const std::lock_guard lock(free.mutex);
    free.workers.push_back(std::exchange(t_worker, nullptr));
  }
};

Worker* TakeWorker() {
  FreeWorkers& free = TheFreeWorkers();
  const std::lock_guard lock(free.mutex);
  if (!free.workers.empty()) {
    Worker* const worker = free.workers.back();
    free.workers.pop_back();
    return worker;
  }
  auto worker = std::make_unique<Worker>();
  worker->arena = static_cast<char*>(std::aligned_alloc(1024, kArenaBytes));
  worker->dynamic = static_cast<char*>(std::aligned_alloc(1024, kDynamicBytes));
  worker->random = GetSettings().seed * 0x9E3779B97F4A7C15U + 1;
  return worker.release();
}

SIMT_UNTRACED Worker& ThisWorker() {
  if (t_worker == nullptr) {
    t_worker = TakeWorker();
    AdoptThread(&t_worker->host);
    static thread_local const Lease lease;
  }
  return *t_worker;
}

SIMT_UNTRACED void SetUpBlock(Worker& w, dim3 grid, dim3 block, std::uint64_t number) {
  w.block.index = {static_cast<unsigned>(number % grid.x),
                   static_cast<unsigned>(number / grid.x % grid.y),
                   static_cast<unsigned>(number / grid.x / grid.y)};
  w.block.threads = block;
  w.block.grid = grid;
  w.threads = w.alive = static_cast<int>(block.x * block.y * block.z);
  w.num_warps = (w.threads + 31) / 32;
  w.arrived = w.any = w.count = 0;
  w.every = 1;
  while (static_cast<int>(w.fibers.size()) < w.threads) {
    auto fiber = std::make_unique<Fiber>();
    MakeFiber(fiber.get(), w.fibers.size(), &FiberMain);
    w.fibers.push_back(std::move(fiber));
  }
  for (int i = 0; i < w.num_warps; ++i) {
    const int lanes = std::min(32, w.threads - i * 32);
    w.warps[i].runnable = w.warps[i].alive = lanes == 32 ? ~0U : (1U << lanes) - 1;
    for (auto& open : w.warps[i].open) {
      open.arrived = 0;
    }
  }
  for (int i = 0; i < w.threads; ++i) {
    Fiber& f = *w.fibers[static_cast<std::size_t>(i)];
    const auto u = static_cast<unsigned>(i);
    f.thread_index = {u % block.x, u / block.x % block.y, u / block.x / block.y};
    f.lane = i & 31;
    f.warp = &w.warps[i / 32];
    f.warp->lanes[f.lane] = &f;
    f.state = FiberState::kRunnable;
    f.last_sync = {};
    f.copies.clear();
    f.commits.clear();
  }
}

SIMT_UNTRACED void RunBlock(
    Worker& w, dim3 grid, dim3 block, std::size_t shared_bytes, std::uint64_t number) {
  SetUpBlock(w, grid, block, number);
  t_fiber = &w.host;
  t_block = &w.block;
  GuardTail(w.dynamic, shared_bytes, kDynamicBytes);
  PoisonBytes(w.dynamic, shared_bytes);
  for (std::size_t i = 0; i < w.num_variables; ++i) {
    PoisonBytes(w.variables[i].data, w.variables[i].bytes);
  }
  ReleaseSync(&w.launch_sync);
  SwitchTo(Pick(w));
  while (w.stalled != nullptr) {
    Fiber* const stalled = std::exchange(w.stalled, nullptr);
    t_fiber = nullptr;  // what the handler does is no part of the kernel
    HandleStall();
    t_fiber = &w.host;
    SwitchTo(stalled);
  }
  AcquireSync(&w.launch_sync);
}

}  // namespace

SIMT_UNTRACED void Stall() {
  Worker& w = *t_worker;
  w.stalled = t_fiber;
  SwitchTo(&w.host);
}

SIMT_UNTRACED void Fail(const char* what, const Location& where) {
  const Worker& w = *t_worker;
  const auto& b = w.block.index;
  const auto& t = t_fiber->thread_index;
  std::fprintf(stderr,
               "EMU FAIL: %s\n  kernel %s block (%u,%u,%u) thread (%u,%u,%u) at %s:%u\n",
               what,
               w.kernel,
               b.x,
               b.y,
               b.z,
               t.x,
               t.y,
               t.z,
               where.file_name(),
               where.line());
  static constexpr const char* kStates[] = {
      "runnable", "waits in its warp", "waits at a block barrier", "exited"};
  int shown = 0;
  const Fiber* previous = nullptr;
  for (int i = 0; i < w.threads && shown < 8; ++i) {
    const Fiber& f = *w.fibers[static_cast<std::size_t>(i)];
    if (previous == nullptr || previous->state != f.state ||
        previous->last_sync.line() != f.last_sync.line()) {
      std::fprintf(stderr,
                   "  from thread %d on: %s, last sync at line %u\n",
                   i,
                   kStates[static_cast<int>(f.state)],
                   f.last_sync.line());
      ++shown;
    }
    previous = &f;
  }
  std::fflush(stderr);
  std::abort();
}

SIMT_UNTRACED void Meet(Meeting kind,
                        std::uint32_t mask,
                        void* operands,
                        MeetAll all,
                        const Location& where,
                        [[maybe_unused]] bool orders_memory) {
  Worker& w = *t_worker;
  Warp& warp = *t_fiber->warp;
  const int lane = t_fiber->lane;
  t_fiber->last_sync = where;
  ++w.counters.meetings;
  if ((mask >> lane & 1) == 0) {
    Fail("warp collective: the calling lane is not in its own mask", where);
  }
  if ((mask & ~warp.alive) != 0) {
    Fail("warp collective: the mask names a lane that has exited or never existed", where);
  }
  Warp::Open& open = warp.open[std::countr_zero(mask)];
  if (open.arrived == 0) {
    open.mask = mask;
    open.kind = kind;
  } else if (open.mask != mask || open.kind != kind) {
    Fail("warp collective: lanes disagree on mask or operation", where);
  }
  warp.operands[lane] = operands;
  open.arrived |= 1U << lane;
  char* sync = &warp.sync[warp.meetings & 1];
  if (orders_memory) {
    ReleaseSync(sync);
  }
  if (open.arrived == mask) {
    if (all != nullptr) {
      all(warp.operands, mask);
    }
    open.arrived = 0;
    ++warp.meetings;
    for (std::uint32_t rest = mask & ~(1U << lane); rest != 0; rest &= rest - 1) {
      Wake(warp.lanes[std::countr_zero(rest)]);
    }
    Yield(w);
  } else {
    Wait(w, FiberState::kInWarp, where);
  }
  if (orders_memory) {
    AcquireSync(sync);
  }
}

SIMT_UNTRACED int BlockBarrier(int predicate, Vote vote, const Location& where) {
  Worker& w = *t_worker;
  t_fiber->last_sync = where;
  if (w.arrived == 0) {
    w.barrier_at = where;
  } else if (w.barrier_at.line() != where.line() ||
             std::string_view(w.barrier_at.file_name()) != where.file_name()) {
    Fail("__syncthreads reached from two different places", where);
  }
  if (w.alive != w.threads) {
    Fail("__syncthreads after some threads of the block have exited", where);
  }
  w.any |= predicate != 0 ? 1 : 0;
  w.every &= predicate != 0 ? 1 : 0;
  w.count += predicate != 0 ? 1 : 0;
  char* sync = &w.barrier_sync[w.barriers_passed & 1];
  ReleaseSync(sync);
  if (++w.arrived == w.alive) {
    w.arrived = 0;
    ++w.barriers_passed;
    ++w.counters.barriers;
    w.votes[0] = w.any;
    w.votes[1] = w.every;
    w.votes[2] = w.count;
    w.any = w.count = 0;
    w.every = 1;
    for (int i = 0; i < w.threads; ++i) {
      Fiber* fiber = w.fibers[static_cast<std::size_t>(i)].get();
      if (fiber->state == FiberState::kAtBarrier) {
        Wake(fiber);
      }
    }
    Yield(w);
  } else {
    Wait(w, FiberState::kAtBarrier, where);
  }
  AcquireSync(sync);
  return w.votes[static_cast<int>(vote)];
}

SIMT_UNTRACED void* SharedVariable(const void* tag, std::size_t bytes) {
  Worker& w = *t_worker;
  for (std::size_t i = 0; i < w.num_variables; ++i) {
    if (w.variables[i].tag == tag) {
      return w.variables[i].data;
    }
  }
  const std::size_t room = (bytes + 64 + 127) / 128 * 128;  // with a guarded gap
  if (w.num_variables == kMaxVariables || w.arena_used + room > kArenaBytes) {
    Fail("too many shared variables in one process", Location::current());
  }
  char* data = w.arena + w.arena_used;
  w.arena_used += room;
  PoisonBytes(data, room);
  GuardTail(data, bytes, room);
  w.variables[w.num_variables++] = {tag, data, bytes};
  return data;
}

SIMT_UNTRACED void* DynamicShared() { return t_worker->dynamic; }

SIMT_UNTRACED void CopyIssue(
    void* to, const void* from, int size, int valid, const Location& where) {
  const auto to_bits = reinterpret_cast<std::uintptr_t>(to);
  const auto from_bits = valid > 0 ? reinterpret_cast<std::uintptr_t>(from) : 0;
  if (((to_bits | from_bits) & static_cast<std::uintptr_t>(size - 1)) != 0) {
    Fail("cp.async: an address is not aligned to the copy's size", where);
  }
  t_fiber->last_sync = where;
  if (GetSettings().copies_early) {
    CopyVisibly(to, from, size, valid);
  }
  t_fiber->copies.push_back({to, from, size, valid});
}

SIMT_UNTRACED void CopyCommit() { t_fiber->commits.push_back(t_fiber->copies.size()); }

SIMT_UNTRACED void CopyWait(int pending) {
  Fiber& f = *t_fiber;
  if (f.commits.size() <= static_cast<std::size_t>(pending)) {
    return;
  }
  const auto groups = static_cast<std::ptrdiff_t>(f.commits.size()) - pending;
  const auto done = static_cast<std::ptrdiff_t>(f.commits[static_cast<std::size_t>(groups - 1)]);
  if (!GetSettings().copies_early) {
    for (std::ptrdiff_t i = 0; i < done; ++i) {
      const auto& copy = f.copies[static_cast<std::size_t>(i)];
      CopyVisibly(copy.to, copy.from, copy.size, copy.valid);
    }
  }
  f.copies.erase(f.copies.begin(), f.copies.begin() + done);
  f.commits.erase(f.commits.begin(), f.commits.begin() + groups);
  for (auto& commit : f.commits) {
    commit -= static_cast<std::size_t>(done);
  }
}

SIMT_UNTRACED void RunBlocks(const char* name,
                             dim3 grid,
                             dim3 block,
                             std::size_t shared_bytes,
                             const std::function<void()>& body,
                             const std::function<bool(std::uint64_t*)>& next) {
  Worker& w = ThisWorker();
  w.body = &body;
  w.kernel = name;
  for (std::uint64_t number = 0; next(&number);) {
    RunBlock(w, grid, block, shared_bytes, number);
  }
  t_fiber = nullptr;
  t_block = nullptr;
  g_meetings += std::exchange(w.counters.meetings, 0);
  g_barriers += std::exchange(w.counters.barriers, 0);
}

void CountLaunch(std::uint64_t threads) {
  ++g_launches;
  g_threads += threads;
}

Counters ReadCounters() { return {g_launches, g_threads, g_meetings, g_barriers}; }

}  // namespace inferd::simt
