// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/cuda_graphs.h"

#include "base/error.h"
#include "base/log.h"
#include "ops/cuda/cuda_device.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {
namespace {

// Shorter contexts share a graph: blocks that find nothing to do cost little.
constexpr std::int64_t kLeastTokens = 1024;
constexpr int kMostAbandoned = 3;

}  // namespace

CudaGraphs::~CudaGraphs() { Clear(); }

void CudaGraphs::Clear() {
  for (const auto& [shape, entry] : entries_) {
    if (entry.exec != nullptr) {
      (void)cudaGraphExecDestroy(entry.exec);
    }
  }
  entries_.clear();
}

void CudaGraphs::CountAbandoned() { stopped_ = stopped_ || ++abandoned_ == kMostAbandoned; }

void CudaGraphs::Configure(std::span<const std::int32_t> sizes, std::int64_t max_tokens) {
  sizes_.assign(sizes.begin(), sizes.end());
  max_tokens_ = max_tokens;
}

GraphShape CudaGraphs::ShapeOf(std::int64_t rows, std::int64_t tokens) const {
  const auto size = std::lower_bound(sizes_.begin(), sizes_.end(), rows);
  if (!on_ || size == sizes_.end()) {
    return {};
  }
  const auto least = static_cast<std::uint64_t>(std::max(tokens, kLeastTokens));
  const GraphShape shape = {*size,
                            std::min(static_cast<std::int64_t>(std::bit_ceil(least)), max_tokens_)};
  return stopped_ && Find(shape) == nullptr ? GraphShape{} : shape;
}

cudaGraphExec_t CudaGraphs::Find(const GraphShape& shape) const {
  const auto found = entries_.find(shape);
  return found != entries_.end() ? found->second.exec : nullptr;
}

bool CudaGraphs::IsTime(const GraphShape& shape) {
  return !stopped_ && entries_[shape].steps++ == 1;
}

cudaError_t CudaGraphs::Add(const GraphShape& shape, cudaGraph_t graph) {
  const cudaError_t error = cudaGraphInstantiate(&entries_[shape].exec, graph, 0);
  if (error != cudaSuccess) {
    entries_[shape].exec = nullptr;
    return error;
  }
  ++counts_.recorded;
  abandoned_ = 0;
  log::Info("ops",
            "recorded a CUDA graph for steps of {} rows and contexts of up to {} tokens",
            shape.rows,
            shape.tokens);
  return cudaSuccess;
}

bool CudaDevice::Replay() {
  if (step_.shape.rows == 0 || !Use()) {
    return false;
  }
  if (cudaGraphExec_t exec = graphs_.Find(step_.shape); exec != nullptr) {
    Check(cudaGraphLaunch(exec, stream_), "replaying a step");
    graphs_.CountReplay();
    return true;
  }
  if (graphs_.IsTime(step_.shape)) {
    // Of this thread only: others of the process may allocate meanwhile.
    Check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "recording a step");
    recording_ = Use();
    queue_.set_recording(recording_);
    recording_error_ = cudaSuccess;
  }
  return false;
}

bool CudaDevice::EndGraph(bool done) {
  if (!std::exchange(recording_, false)) {
    return true;
  }
  queue_.set_recording(false);
  if (queue_.TakeDropped()) {
    graphs_.CountAbandoned();
    return !done;
  }
  cudaGraph_t graph = nullptr;
  cudaError_t error = cudaStreamEndCapture(stream_, &graph);
  if (!done) {
    (void)cudaGetLastError();
    if (error == cudaSuccess) {
      (void)cudaGraphDestroy(graph);
    }
    // An operation that cannot be recorded now cannot be later.
    error != cudaSuccess || recording_error_ != cudaSuccess ? graphs_.Stop()
                                                            : graphs_.CountAbandoned();
    return true;
  }
  if (error == cudaSuccess) {
    error = recording_error_ == cudaSuccess ? graphs_.Add(step_.shape, graph) : recording_error_;
    (void)cudaGraphDestroy(graph);
  }
  if (error == cudaSuccess) {
    Check(cudaGraphLaunch(graphs_.Find(step_.shape), stream_), "replaying a step");
    return true;
  }
  (void)cudaGetLastError();
  graphs_.Stop();
  log::Warning("ops",
               "{} records no more CUDA graphs, since a step cannot be recorded: {}",
               name_,
               cudaGetErrorString(error));
  return false;
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
