// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/stream_wait.h"

#include <poll.h>
#include <sched.h>

#include <atomic>
#include <ctime>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {
namespace {

std::atomic<bool> g_hangs{false};

}  // namespace

using Clock = std::chrono::steady_clock;

void PauseBetweenLooks(Clock::time_point began) {
  constexpr std::chrono::milliseconds kYieldFor{20};
  if (Clock::now() - began < kYieldFor) {
    ::sched_yield();
  } else {
    const timespec little = {.tv_sec = 0, .tv_nsec = 100'000};
    ::ppoll(nullptr, 0, &little, nullptr);
  }
}

// The time is taken before the look: on an emulated device it is the look that does the work.
cudaError_t AwaitStream(cudaStream_t stream, std::chrono::milliseconds within) {
  for (const Clock::time_point began = Clock::now();; PauseBetweenLooks(began)) {
    const Clock::time_point asked = Clock::now();
    const cudaError_t state = cudaStreamQuery(stream);
    if (state != cudaErrorNotReady) {
      return state;
    }
    (void)cudaGetLastError();  // No error, but some versions keep it as one.
    if (asked - began > within) {
      g_hangs = true;
      return state;
    }
  }
}

bool ADeviceHangs() { return g_hangs; }

void FreeUnlessHung(void* device_memory) {
  if (!ADeviceHangs()) {
    (void)cudaFree(device_memory);
  }
}

void FreeHostUnlessHung(void* pinned_memory) {
  if (!ADeviceHangs()) {
    (void)cudaFreeHost(pinned_memory);
  }
}

void CloseUnlessHung(void* peers_memory) {
  if (!ADeviceHangs()) {
    (void)cudaIpcCloseMemHandle(peers_memory);
  }
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
