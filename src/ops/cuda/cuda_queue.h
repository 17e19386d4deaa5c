// SPDX-License-Identifier: Apache-2.0
// The stream of a CUDA device as collectives see it, and the wait for it.
#pragma once

#include "inferd/result.h"
#include "ops/cuda/cuda_graphs.h"
#include "ops/cuda/cuda_peers.h"
#include "tensor/device_queue.h"

#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

/// One thread: the device's. The device owns the stream.
class CudaQueue final : public tensor::DeviceQueue {
 public:
  /// `graphs` of the same device, which outlive the queue.
  CudaQueue(int index, std::string device_id, CudaGraphs* graphs)
      : index_(index), device_id_(std::move(device_id)), graphs_(graphs), peers_(index) {}
  ~CudaQueue() override;
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  void set_stream(cudaStream_t stream);
  void set_recording(bool recording) { recording_ = recording; }

  void* stream() const override { return stream_; }
  Result<> MakeCurrent() override;
  const std::string& device_id() const override { return device_id_; }
  tensor::FindFunction collectives() const override;
  std::uint64_t Mark() override;
  std::uint64_t Passed() override;
  void SetGuard(tensor::WaitGuard* guard) override {
    guard_ = guard;
    stalled_.reset();
  }
  void SetWaitLimit(std::chrono::milliseconds limit) override { limit_ = limit; }
  bool Recording() const override { return recording_; }
  void DropRecordings() override;
  /// Whether DropRecordings ended the recording under way, since this was last asked.
  bool TakeDropped() { return std::exchange(dropped_, false); }
  tensor::PeerAccess* peers() override { return &peers_; }

  /// How a wait ended: with the stream's error, or given up for the guard's error or at the limit,
  /// and then with cudaErrorNotReady when the stream went on nevertheless.
  struct Waited {
    cudaError_t error = cudaSuccess;
    std::optional<Error> given_up;
  };
  Waited Wait();
  /// The same for what was given before `event` was recorded; what came later may go on. `waited`
  /// so far, in looks.
  Waited WaitFor(cudaEvent_t event, std::chrono::nanoseconds waited = {});
  /// One look at it. True: WaitFor returns at once, or gives up.
  bool Look(cudaEvent_t event, std::chrono::nanoseconds waited);

 private:
  /// Asks `query` until it knows, and whether to wait on after what was waited `before`; if not,
  /// the whole stream.
  template <class Query>
  Waited Poll(Query query, std::chrono::nanoseconds before);
  /// The guard's word; without one, the limit's.
  Result<> MayWaitOn(std::chrono::nanoseconds waited);

  struct Outstanding {
    std::uint64_t mark = 0;
    cudaEvent_t event = nullptr;
  };

  const int index_;
  const std::string device_id_;
  CudaGraphs* const graphs_;
  CudaPeers peers_;
  bool recording_ = false;
  bool dropped_ = false;
  std::optional<Error> stalled_;  // why a kernel that kept this thread gave up; the next Wait tells
  cudaStream_t stream_ = nullptr;
  tensor::WaitGuard* guard_ = nullptr;
  std::chrono::milliseconds limit_{60'000};  // of a load's waits, until somebody sets another
  std::uint64_t marks_ = 0;
  std::uint64_t passed_ = 0;
  std::deque<Outstanding> outstanding_;
  std::vector<cudaEvent_t> free_;
};

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
