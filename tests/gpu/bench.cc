// SPDX-License-Identifier: Apache-2.0
#include "bench.h"

#include "noise.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>

namespace inferd::gpu {
namespace {

constexpr std::size_t kNoiseBytes = 16U << 20U;

Result<> Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) {
    return {};
  }
  return Internal(
      "{}: CUDA error {} ({})", what, static_cast<int>(error), cudaGetErrorString(error));
}

Result<DeviceBytes> Allocate(std::size_t bytes) {
  void* data = nullptr;
  INFERD_TRY(Check(cudaMalloc(&data, std::max<std::size_t>(bytes, 16)), "allocating"));
  return DeviceBytes(static_cast<std::byte*>(data));
}

}  // namespace

void FreeOnDevice::operator()(std::byte* at) const { (void)cudaFree(at); }

Result<std::unique_ptr<Bench>> Bench::Make(bool tiny) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return Unavailable("no CUDA device: {}",
                       error != cudaSuccess ? cudaGetErrorString(error) : "the driver finds none");
  }
  std::unique_ptr<Bench> bench(new Bench(tiny));
  INFERD_TRY(
      Check(cudaStreamCreateWithFlags(&bench->stream_, cudaStreamNonBlocking), "making a stream"));
  INFERD_ASSIGN(bench->noise_, Allocate(kNoiseBytes));
  const Noise noise(kNoiseBytes);
  INFERD_TRY(Check(
      cudaMemcpy(bench->noise_.get(), noise.bytes().data(), kNoiseBytes, cudaMemcpyHostToDevice),
      "sending noise"));
  INFERD_TRY(Check(cudaDeviceSynchronize(), "sending noise"));
  return bench;
}

Bench::~Bench() {
  noise_.reset();
  if (stream_ != nullptr) {
    (void)cudaStreamDestroy(stream_);
  }
}

Result<DeviceBytes> Bench::Fill(std::size_t bytes) {
  INFERD_ASSIGN(DeviceBytes memory, Allocate(bytes));
  for (std::size_t done = 0; done < bytes; done += kNoiseBytes) {
    INFERD_TRY(Check(cudaMemcpyAsync(memory.get() + done,
                                     noise_.get(),
                                     std::min(kNoiseBytes, bytes - done),
                                     cudaMemcpyDeviceToDevice,
                                     stream_),
                     "spreading noise"));
  }
  INFERD_TRY(Check(cudaStreamSynchronize(stream_), "spreading noise"));
  return memory;
}

Result<DeviceBytes> Bench::Upload(const void* from, std::size_t bytes) {
  INFERD_ASSIGN(DeviceBytes memory, Allocate(bytes));
  INFERD_TRY(Check(cudaMemcpy(memory.get(), from, bytes, cudaMemcpyHostToDevice), "sending"));
  INFERD_TRY(Check(cudaDeviceSynchronize(), "sending"));
  return memory;
}

std::int64_t Bench::Pieces(std::size_t bytes, std::int64_t most) const {
  constexpr std::size_t kAll = 256U << 20U;
  return tiny_ ? 1 : std::clamp<std::int64_t>(static_cast<std::int64_t>(kAll / bytes + 1), 1, most);
}

Result<double> Bench::Seconds(const std::function<kernels::cuda::Status(std::int64_t)>& launch) {
  using Clock = std::chrono::steady_clock;
  constexpr double kEnough = 0.04;
  constexpr std::int64_t kMostLaunches = 4096;
  std::int64_t next = 0;
  for (std::int64_t count = 1;;) {
    const auto begin = Clock::now();
    for (std::int64_t i = 0; i < count; ++i) {
      const auto error = static_cast<cudaError_t>(launch(next++));
      INFERD_TRY(Check(error, "launching"));
    }
    INFERD_TRY(Check(cudaStreamSynchronize(stream_), "waiting for the device"));
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const bool first = next == count;  // the kernel was loaded on the way
    if (tiny_ || (!first && (seconds >= kEnough || count == kMostLaunches))) {
      return seconds / static_cast<double>(count);
    }
    const double wanted = 1.2 * kEnough / seconds * static_cast<double>(count);
    count = first ? (seconds < kEnough ? 8 : 2)
                  : std::clamp(static_cast<std::int64_t>(wanted),
                               std::min(count + 1, kMostLaunches),
                               kMostLaunches);
  }
}

Result<> SweepCopies(Bench& bench) {
  const std::size_t bytes = bench.tiny() ? 1U << 20U : 512U << 20U;
  INFERD_ASSIGN(const DeviceBytes from, bench.Fill(bytes));
  INFERD_ASSIGN(const DeviceBytes to, bench.Fill(bytes));
  void* pinned = nullptr;
  INFERD_TRY(Check(cudaMallocHost(&pinned, bytes), "allocating pinned memory"));
  const std::unique_ptr<void, cudaError_t (*)(void*)> host(pinned, &cudaFreeHost);
  struct Way {
    const char* name;
    void* to;
    const void* from;
    cudaMemcpyKind kind;
    double traffic;  // bytes of memory moved per byte copied
  };
  for (const Way& way : {Way{"device_to_device", to.get(), from.get(), cudaMemcpyDeviceToDevice, 2},
                         Way{"host_to_device", to.get(), pinned, cudaMemcpyHostToDevice, 1},
                         Way{"device_to_host", pinned, from.get(), cudaMemcpyDeviceToHost, 1}}) {
    INFERD_ASSIGN(const double seconds, bench.Seconds([&](std::int64_t) {
      return static_cast<kernels::cuda::Status>(
          cudaMemcpyAsync(way.to, way.from, bytes, way.kind, bench.stream()));
    }));
    bench.Print(R"("sweep": "copy", "way": "{}", "mb": {:.1f}, "ms": {:.4f}, "gb_s": {:.4g})",
                way.name,
                static_cast<double>(bytes) * 1e-6,
                seconds * 1e3,
                way.traffic * static_cast<double>(bytes) * 1e-9 / seconds);
  }
  return {};
}

}  // namespace inferd::gpu
