// SPDX-License-Identifier: Apache-2.0
// The emulated multiprocessor. Every CUDA thread of a running block is a fiber; the block's fibers
// share one host thread, and the blocks of a grid are spread over a small pool. A fiber runs until
// it waits for its warp or its block, so the order in which fibers run is ours to choose, and a
// kernel that is right must not notice:
//
//   EMU_ORDER=fwd|rev|rand[:seed]  order of lanes, warps and blocks; finds missing barriers
//   EMU_CPASYNC=late|early         cp.async lands when it is waited for, or at once; finds missing
//                                  waits, and buffers refilled while in use
//   EMU_THREADS=n                  host threads that run blocks
//
// Shared and device memory start as NaN bytes. Divergent barriers and collectives, exited lanes in
// a mask and deadlocks end the process with the state of every thread. The engine never returns
// errors: whatever it reports is a bug in a kernel.
#pragma once

#include "kernels/simt/vector_types.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <vector>

// Engine code looks into other fibers' stacks by design; the race detector must not.
#if defined(__SANITIZE_THREAD__)
#define SIMT_UNTRACED __attribute__((no_sanitize_thread, noinline))
#else
#define SIMT_UNTRACED
#endif

namespace inferd::simt {

using Location = std::source_location;

/// What the lanes of a warp meet for; lanes that meet for different things have diverged.
enum class Meeting : std::uint8_t { kNone, kShuffle, kVote, kSyncWarp, kLoadMatrix, kMma };

enum class FiberState : std::uint8_t { kRunnable, kInWarp, kAtBarrier, kExited };

struct Warp;

struct Fiber {
  uint3 thread_index;
  int lane = 0;
  Warp* warp = nullptr;
  FiberState state = FiberState::kExited;
  void* stack_pointer = nullptr;
  char* stack = nullptr;
  void* asan_stack = nullptr;
  void* tsan_fiber = nullptr;
  Location last_sync;

  struct Copy {
    void* to;
    const void* from;
    int size;   // bytes written
    int valid;  // of these, bytes read; the rest become zero
  };
  std::vector<Copy> copies;          // issued cp.async that have not been waited for, oldest first
  std::vector<std::size_t> commits;  // for each committed group, how many copies it ends after
};

struct Warp {
  std::uint32_t runnable = 0;
  std::uint32_t alive = 0;
  Fiber* lanes[32] = {};
  void* operands[32] = {};
  /// One open meeting per disjoint mask, found by the mask's lowest lane.
  struct Open {
    std::uint32_t mask = 0;
    std::uint32_t arrived = 0;
    Meeting kind = Meeting::kNone;
  };
  Open open[32];
  std::uint64_t meetings = 0;
  char sync[2] = {};  // addresses for the race detector
};

struct Block {
  uint3 index;
  dim3 threads;
  dim3 grid;
};

/// Of the fiber that runs on this host thread.
extern constinit thread_local Fiber* t_fiber;
extern constinit thread_local Block* t_block;

/// Runs `body` as grid x block threads and returns when all have finished. `name` is for messages
/// and must outlive the call.
void RunGrid(const char* name,
             dim3 grid,
             dim3 block,
             std::size_t shared_bytes,
             const std::function<void()>& body);

/// Waits until every lane of `mask` has come for the same thing; the last to arrive runs `all` on
/// the operands of all lanes. `orders_memory` tells the race detector that this is a fence.
using MeetAll = void (*)(void** operands, std::uint32_t mask);
void Meet(Meeting kind,
          std::uint32_t mask,
          void* operands,
          MeetAll all,
          const Location& where,
          bool orders_memory);

enum class Vote : std::uint8_t { kOr, kAnd, kCount };
int BlockBarrier(int predicate, Vote vote, const Location& where);

/// Static shared memory: one fresh, poisoned piece per block for each `tag`.
void* SharedVariable(const void* tag, std::size_t bytes);
void* DynamicShared();

void CopyIssue(void* to, const void* from, int size, int valid, const Location& where);
void CopyCommit();
/// Until at most `pending` committed groups are outstanding.
void CopyWait(int pending);

/// The running fiber waits for something outside its grid: its host thread may do something else
/// (OnStall in runtime_api.h) before it looks again.
void Stall();

[[noreturn]] void Fail(const char* what, const Location& where);

/// Since the process began; printed by the tests.
struct Counters {
  std::uint64_t launches = 0;
  std::uint64_t threads = 0;
  std::uint64_t meetings = 0;
  std::uint64_t barriers = 0;
};
Counters ReadCounters();

}  // namespace inferd::simt
