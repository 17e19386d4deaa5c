// SPDX-License-Identifier: Apache-2.0
// Streams as the files of the emulated runtime see them: their queues, and what is captured.
#pragma once

#include "kernels/simt/runtime_api.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

struct CUgraph_st {
  std::vector<std::function<bool()>> work;  // as a stream's
  int launches = 0;                         // of kernels
};
struct CUgraphExec_st {
  std::vector<std::function<bool()>> work;
  int launches = 0;
};

namespace inferd::simt {

/// What one stream is given between the begin and the end of a capture. Under the stream's mutex.
struct Capture {
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  CUgraph_st graph;
  std::atomic<bool> invalid{false};  // any thread
};

}  // namespace inferd::simt

struct CUstream_st {
  std::recursive_mutex mutex;  // a callback may query its own stream
  std::deque<std::function<bool()>> queue;
  std::shared_ptr<inferd::simt::Capture> capture;  // null: none
  std::function<void(std::chrono::nanoseconds)> on_stall;
  bool draining = false;
};
struct CUevent_st {
  std::atomic<std::uint64_t> recorded{0};
  std::atomic<std::uint64_t> reached{0};
  std::atomic<cudaStream_t> stream{nullptr};
  std::atomic<std::int64_t> time_ns{0};
  std::atomic<bool> captured{false};  // last recorded in a capture: tells nothing to the host
};

namespace inferd::simt {

/// The stream itself, or the one that null stands for.
cudaStream_t OrDefault(cudaStream_t stream);

/// The calling thread does what it must not while it captures (or while anybody captures in global
/// mode): those captures become invalid and the call fails. cudaSuccess: nobody does.
cudaError_t RefuseInCapture();
/// The same for a call that must not name `stream` while that is captured.
cudaError_t RefuseOn(cudaStream_t stream);

}  // namespace inferd::simt
