// SPDX-License-Identifier: Apache-2.0
// Waiting is polling: a stream that waits for a dead peer never ends, and only the host can find
// that out.
#include "ops/cuda/cuda_queue.h"

#include "base/error.h"
#include "ops/cuda/stream_wait.h"

#include <chrono>

#ifdef INFERD_SIMT
#include "kernels/simt/nccl.h"
#include "kernels/simt/runtime_api.h"
#endif

namespace inferd::ops::INFERD_CUDA_NAMESPACE {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxMarks = 512;

}  // namespace

CudaQueue::~CudaQueue() {
  for (const Outstanding& outstanding : outstanding_) {
    (void)cudaEventDestroy(outstanding.event);
  }
  for (cudaEvent_t event : free_) {
    (void)cudaEventDestroy(event);
  }
}

void CudaQueue::set_stream(cudaStream_t stream) {
  stream_ = stream;
  peers_.set_stream(stream);
#ifdef INFERD_SIMT
  // On an emulated device who launches is in the kernel, and nobody is in Wait meanwhile.
  simt::OnStall(stream, [this](std::chrono::nanoseconds waited) {
    if (guard_ != nullptr && !stalled_) {
      if (Result<> whole = guard_->Check(waited); !whole.ok()) {
        stalled_ = whole.error();
      }
    }
  });
#endif
}

Result<> CudaQueue::MakeCurrent() {
  if (const cudaError_t error = cudaSetDevice(index_); error != cudaSuccess) {
    return Internal("{} is not to be used: {}", device_id_, cudaGetErrorString(error));
  }
  return {};
}

tensor::FindFunction CudaQueue::collectives() const {
#ifdef INFERD_SIMT
  return simt::FindNccl;
#else
  return {};
#endif
}

std::uint64_t CudaQueue::Mark() {
  if (outstanding_.size() == kMaxMarks) {
    (void)Passed();
  }
  cudaEvent_t event = nullptr;
  if (outstanding_.size() == kMaxMarks) {
    return marks_;
  }
  if (!free_.empty()) {
    event = free_.back();
    free_.pop_back();
  } else if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
    return marks_;  // The device has failed: its next operation tells.
  }
  outstanding_.push_back({++marks_, event});
  (void)cudaEventRecord(event, stream_);
  return marks_;
}

std::uint64_t CudaQueue::Passed() {
  while (!outstanding_.empty() && cudaEventQuery(outstanding_.front().event) == cudaSuccess) {
    passed_ = outstanding_.front().mark;
    free_.push_back(outstanding_.front().event);
    outstanding_.pop_front();
  }
  return passed_;
}

Result<> CudaQueue::MayWaitOn(std::chrono::nanoseconds waited) {
  if (guard_ != nullptr) {
    return guard_->Check(waited);
  }
  if (waited > limit_) {
    return DeadlineExceeded("{} is not done after {} ms", device_id_, limit_.count());
  }
  return {};
}

// The time is taken before the look: on an emulated device it is the look that does the work.
template <class Query>
CudaQueue::Waited CudaQueue::Poll(Query query, std::chrono::nanoseconds before) {
  Waited waited;
  const Clock::time_point began = Clock::now();
  for (;; PauseBetweenLooks(began)) {
    const Clock::time_point asked = Clock::now();
    waited.error = query();
    if (waited.error != cudaErrorNotReady) {
      break;
    }
    (void)cudaGetLastError();  // No error, but some versions keep it as one.
    if (Result<> whole = MayWaitOn(before + (asked - began)); !whole.ok()) {
      return {AwaitStream(stream_, kDrainFor), whole.error()};
    }
  }
  if (guard_ != nullptr) {
    // What the queue has done counts only if nobody has ended the group before it.
    waited.given_up = std::exchange(stalled_, std::nullopt);
    if (Result<> whole = guard_->Check(Clock::now() - began); !waited.given_up && !whole.ok()) {
      waited.given_up = whole.error();
    }
  }
  return waited;
}

CudaQueue::Waited CudaQueue::Wait() {
  return Poll([this] { return cudaStreamQuery(stream_); }, {});
}

CudaQueue::Waited CudaQueue::WaitFor(cudaEvent_t event, std::chrono::nanoseconds waited) {
  return Poll([event] { return cudaEventQuery(event); }, waited);
}

bool CudaQueue::Look(cudaEvent_t event, std::chrono::nanoseconds waited) {
  if (cudaEventQuery(event) != cudaErrorNotReady) {
    return true;
  }
  (void)cudaGetLastError();  // No error, but some versions keep it as one.
  return !MayWaitOn(waited).ok();
}

// A recording holds calls too, from the first one on.
void CudaQueue::DropRecordings() {
  if (std::exchange(recording_, false)) {
    dropped_ = true;
    cudaGraph_t graph = nullptr;
    if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess) {
      (void)cudaGraphDestroy(graph);
    }
    (void)cudaGetLastError();
  }
  graphs_->Clear();
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
