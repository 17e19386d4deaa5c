// SPDX-License-Identifier: Apache-2.0
// Capture and graphs. While a stream is captured nothing runs: what it is given becomes the graph.
// What cannot be part of one (a synchronous call, an allocation, a copy of pageable memory) fails
// and makes the capture invalid, as the driver does it.
#include "kernels/simt/runtime_api.h"
#include "kernels/simt/runtime_state.h"
#include "kernels/simt/runtime_streams.h"

#include <algorithm>
#include <utility>

namespace inferd::simt {
namespace {

struct Captures {
  std::mutex mutex;
  std::vector<std::shared_ptr<Capture>> all;
};

Captures& TheCaptures() {
  static Captures captures;
  return captures;
}

}  // namespace

cudaError_t RefuseInCapture() {
  Captures& captures = TheCaptures();
  const std::lock_guard lock(captures.mutex);
  cudaError_t error = cudaSuccess;
  for (const auto& capture : captures.all) {
    const bool of_this_thread = capture->mode == cudaStreamCaptureModeThreadLocal &&
                                capture->thread == std::this_thread::get_id();
    if (capture->mode == cudaStreamCaptureModeGlobal || of_this_thread) {
      capture->invalid = true;
      error = Keep(cudaErrorStreamCaptureUnsupported);
    }
  }
  return error;
}

cudaError_t RefuseOn(cudaStream_t stream) {
  stream = OrDefault(stream);
  const std::lock_guard lock(stream->mutex);
  if (stream->capture == nullptr) {
    return cudaSuccess;
  }
  stream->capture->invalid = true;
  return Keep(cudaErrorStreamCaptureUnsupported);
}

}  // namespace inferd::simt

using inferd::simt::Capture;
using inferd::simt::DeviceState;
using inferd::simt::Keep;
using inferd::simt::OrDefault;
using inferd::simt::TheCaptures;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr) {
    return Keep(cudaErrorStreamCaptureUnsupported);
  }
  if (const cudaError_t state = DeviceState(); state != cudaSuccess) {
    return state;
  }
  const std::lock_guard lock(stream->mutex);
  if (stream->capture != nullptr) {
    stream->capture->invalid = true;
    return Keep(cudaErrorStreamCaptureUnsupported);
  }
  stream->capture = std::make_shared<Capture>();
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  auto& captures = TheCaptures();
  const std::lock_guard captures_lock(captures.mutex);
  captures.all.push_back(stream->capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  stream = OrDefault(stream);
  const std::lock_guard lock(stream->mutex);
  const std::shared_ptr<Capture> capture = std::exchange(stream->capture, nullptr);
  if (capture == nullptr) {
    return Keep(cudaErrorIllegalState);
  }
  {
    auto& captures = TheCaptures();
    const std::lock_guard captures_lock(captures.mutex);
    std::erase(captures.all, capture);
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return Keep(cudaErrorStreamCaptureWrongThread);
  }
  if (capture->invalid) {
    return Keep(cudaErrorStreamCaptureInvalidated);
  }
  *graph = std::make_unique<CUgraph_st>(std::move(capture->graph)).release();
  return DeviceState();
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (const cudaError_t error = inferd::simt::RefuseInCapture(); error != cudaSuccess) {
    return error;
  }
  *exec = std::make_unique<CUgraphExec_st>(CUgraphExec_st{graph->work, graph->launches}).release();
  return DeviceState();
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec,
                                cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* result) {
  result->result = exec->work.size() == graph->work.size() ? 0 : 1;
  if (result->result != 0) {
    return Keep(cudaErrorGraphExecUpdateFailure);
  }
  exec->work = graph->work;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (const cudaError_t error = inferd::simt::RefuseOn(stream); error != cudaSuccess) {
    return error;  // The driver would make it a part of the graph; we do not.
  }
  if (const cudaError_t state = inferd::simt::CountLaunches(exec->launches); state != cudaSuccess) {
    return state;
  }
  const auto all = exec->work;  // who is asked while it runs may destroy it
  for (const auto& work : all) {
    (void)inferd::simt::EnqueueUntil(stream, work);
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
