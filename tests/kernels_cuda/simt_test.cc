// SPDX-License-Identifier: Apache-2.0
// The emulated runtime itself: memory limits, streams, events, graphs, faults.
#include "device_fixture.h"
#include "kernels/rows/rows_cuda.h"
#include "kernels/simt/settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace inferd::kernels::cuda {
namespace {

TEST(Simt, DeviceMemoryHasALimitAndStartsAsNan) {
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, total + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  const DeviceArray<float> x(3);
  for (const float value : x.Download()) {
    EXPECT_NE(value, value);
  }
  std::size_t less = 0;
  ASSERT_EQ(cudaMemGetInfo(&less, &total), cudaSuccess);
  EXPECT_LT(less, free);
}

TEST(Simt, ACopyMustNameDeviceMemory) {
  float host[4] = {};
  const DeviceArray<float> x(4);
  EXPECT_EQ(cudaMemcpy(host, host, sizeof(host), cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, x.get(), 4096, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, x.get(), sizeof(host), cudaMemcpyDeviceToHost), cudaSuccess);
  cudaGetLastError();
}

TEST(Simt, StreamsRunInOrderAndEventsJoinThem) {
  cudaStream_t first, second;
  cudaEvent_t event;
  ASSERT_EQ(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  const DeviceArray<float> x(std::vector<float>(5, 1.0F));
  EXPECT_OK(Add(x.get(), 5, x.get(), 5, 1, 5, first));
  EXPECT_OK(Add(x.get(), 5, x.get(), 5, 1, 5, first));
  ASSERT_EQ(cudaEventRecord(event, first), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second, event), cudaSuccess);
  std::vector<float> host(5);
  ASSERT_EQ(cudaMemcpyAsync(host.data(), x.get(), 20, cudaMemcpyDeviceToHost, second), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(host, std::vector<float>(5, 4.0F));
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  cudaEventDestroy(event);
  cudaStreamDestroy(first);
  cudaStreamDestroy(second);
}

TEST(Simt, WaitingForAnEventLeavesWhatIsBehindIt) {
  cudaStream_t stream;
  cudaEvent_t event;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  const DeviceArray<float> x(std::vector<float>(1, 1.0F));
  const bool lazy = simt::GetSettings().lazy_streams;
  for (const bool asks : {false, true}) {
    const float before = *x.get();
    EXPECT_OK(Add(x.get(), 1, x.get(), 1, 1, 1, stream));
    ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);
    EXPECT_OK(Add(x.get(), 1, x.get(), 1, 1, 1, stream));
    if (asks) {
      EXPECT_EQ(cudaEventQuery(event), lazy ? cudaErrorNotReady : cudaSuccess);
      EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
    } else {
      EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
    }
    EXPECT_EQ(*x.get(), (lazy ? 2 : 4) * before);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(*x.get(), 4 * before);
  }
  cudaEventDestroy(event);
  cudaStreamDestroy(stream);
}

TEST(Simt, AGraphReplaysWhatWasCaptured) {
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const DeviceArray<float> x(std::vector<float>(3, 1.0F)), y(std::vector<float>(3, 2.0F));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_OK(Add(x.get(), 3, y.get(), 3, 1, 3, stream));
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(x.Download(), std::vector<float>(3, 1.0F));
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
  }
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(x.Download(), std::vector<float>(3, 7.0F));
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  cudaGetLastError();
}

TEST(Simt, AGraphReadsMemoryAsItIsWhenItRuns) {
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, 3 * sizeof(float)), cudaSuccess);
  auto* const input = static_cast<float*>(pinned);
  const DeviceArray<float> x(3), y(std::vector<float>(3, 2.0F));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(x.get(), input, 3 * sizeof(float), cudaMemcpyHostToDevice, stream),
            cudaSuccess);
  EXPECT_OK(Add(x.get(), 3, y.get(), 3, 1, 3, stream));
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  cudaGraphDestroy(graph);
  for (const float value : {1.0F, 5.0F}) {
    std::fill_n(input, 3, value);
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(x.Download(), std::vector<float>(3, value + 2));
  }
  cudaGraphExecDestroy(exec);
  cudaFreeHost(pinned);
  cudaStreamDestroy(stream);
}

// Each of these is refused while a stream is captured, and leaves no graph.
TEST(Simt, WhatCannotBeInAGraphMakesTheCaptureInvalid) {
  cudaStream_t stream;
  cudaEvent_t event;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  const DeviceArray<float> x(std::vector<float>(3, 1.0F));
  float pageable[3] = {};
  void* pointer = nullptr;
  const std::vector<std::pair<const char*, std::function<cudaError_t()>>> calls = {
      {"waiting for the stream", [&] { return cudaStreamSynchronize(stream); }},
      {"asking the stream", [&] { return cudaStreamQuery(stream); }},
      {"waiting for the device", [&] { return cudaDeviceSynchronize(); }},
      {"waiting for an event", [&] { return cudaEventSynchronize(event); }},
      {"allocating", [&] { return cudaMalloc(&pointer, 16); }},
      {"allocating pinned memory", [&] { return cudaMallocHost(&pointer, 16); }},
      {"a copy of pageable memory",
       [&] { return cudaMemcpyAsync(x.get(), pageable, 12, cudaMemcpyHostToDevice, stream); }},
      {"a copy to pageable memory",
       [&] { return cudaMemcpyAsync(pageable, x.get(), 12, cudaMemcpyDefault, stream); }},
      {"a synchronous copy",
       [&] { return cudaMemcpy(pageable, x.get(), 12, cudaMemcpyDeviceToHost); }},
      {"an event of outside", [&] { return cudaStreamWaitEvent(stream, event); }},
  };
  for (const auto& [name, call] : calls) {
    cudaGraph_t graph;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported) << name;
    EXPECT_EQ(static_cast<int>(Add(x.get(), 3, x.get(), 3, 1, 3, stream)),
              cudaErrorStreamCaptureInvalidated)
        << name;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated) << name;
    EXPECT_EQ(graph, nullptr);
  }
  cudaGetLastError();
  EXPECT_OK(Add(x.get(), 3, x.get(), 3, 1, 3, stream));
  EXPECT_EQ(x.Download(), std::vector<float>(3, 2.0F)) << "the refused launches did nothing";
  cudaEventDestroy(event);
  cudaStreamDestroy(stream);
}

TEST(Simt, AFaultSticksToTheDevice) {
  const DeviceArray<float> x(std::vector<float>(3, 1.0F));
  simt::SetFaultAfterLaunches(0, 1, cudaErrorIllegalAddress);
  EXPECT_OK(Add(x.get(), 3, x.get(), 3, 1, 3, nullptr));
  EXPECT_EQ(static_cast<int>(Add(x.get(), 3, x.get(), 3, 1, 3, nullptr)), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorIllegalAddress);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 16), cudaErrorIllegalAddress);
  simt::SetDeviceFault(0, cudaSuccess);
  cudaGetLastError();
  EXPECT_EQ(x.Download(), std::vector<float>(3, 2.0F));
}

}  // namespace
}  // namespace inferd::kernels::cuda
