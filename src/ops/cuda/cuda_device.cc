// SPDX-License-Identifier: Apache-2.0
// Construction, memory and copies of a CUDA device.
#include "ops/cuda/cuda_device.h"

#include "base/check.h"
#include "base/error.h"
#include "ops/cuda/cuda_select.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

CudaDevice::CudaDevice(int index,
                       std::string name,
                       std::string id,
                       std::unique_ptr<ThreadTeam> team)
    : index_(index),
      name_(std::move(name)),
      team_(std::move(team)),
      queue_(index, std::move(id), &graphs_) {}

CudaDevice::~CudaDevice() {
  if (stream_ != nullptr && cudaSetDevice(index_) == cudaSuccess) {
    if (AwaitStream(stream_, kDrainFor) == cudaErrorNotReady) {
      (void)library_.lt.release();  // Its end waits for the device.
      return;
    }
    for (cudaEvent_t event : steps_.ended) {
      if (event != nullptr) {
        (void)cudaEventDestroy(event);
      }
    }
    (void)cudaStreamDestroy(stream_);
  }
}

Result<> CudaDevice::Init() {
  constexpr std::size_t kLoadStagingBytes = 64U << 10U;  // Reserve makes room for steps
  if (Use()) {
    Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    for (cudaEvent_t& event : steps_.ended) {
      Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    }
  }
  if (error_) {
    return *error_;
  }
  queue_.set_stream(stream_);
  INFERD_ASSIGN(staging_, MakeStaging(kLoadStagingBytes));
  return {};
}

Result<Staging> CudaDevice::MakeStaging(std::size_t bytes) {
  std::array<Memory, 2> host;
  for (Memory& half : host) {
    INFERD_ASSIGN(half, AllocateHost(bytes, "staging"));
  }
  INFERD_ASSIGN(Memory device, Allocate(bytes, "staging"));
  return Staging(std::move(host), std::move(device));
}

bool CudaDevice::Use() {
  if (!error_ && ADeviceHangs()) {
    error_ =
        Internal("{} is not used any more, since a device of this worker hangs; it ends", name_);
  }
  if (error_) {
    return false;
  }
  Check(cudaSetDevice(index_), "choosing the device");
  return !error_;
}

void CudaDevice::Check(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess || error_) {
    return;
  }
  (void)cudaGetLastError();  // Told here; a later call must not tell it again.
  if (recording_) {
    recording_error_ = error;  // Nothing has been done yet: EndGraph deals with it.
    return;
  }
  error_ = Internal("{} failed in {}: CUDA error {} ({}); this worker ends",
                    name_,
                    what,
                    static_cast<int>(error),
                    cudaGetErrorString(error));
}

Result<Memory> CudaDevice::Allocate(std::size_t bytes, std::string_view what) {
  if (!Use()) {
    return *error_;
  }
  if (bytes == 0) {
    return Memory();
  }
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    std::size_t free = 0;
    std::size_t total = 0;
    (void)cudaMemGetInfo(&free, &total);
    return ResourceExhausted(
        "{} bytes for {} do not fit {}: {} of {} bytes are free", bytes, what, name_, free, total);
  }
  Check(error, what);
  if (error_) {
    return *error_;
  }
  Memory memory(
      static_cast<std::byte*>(data), bytes, [](std::byte* at, std::size_t) { FreeUnlessHung(at); });
  Check(cudaMemsetAsync(data, 0, bytes, stream_), what);
  return memory;
}

Result<Memory> CudaDevice::AllocateHost(std::size_t bytes, std::string_view what) {
  if (!Use()) {
    return *error_;
  }
  if (bytes == 0) {
    return Memory();
  }
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, bytes);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return ResourceExhausted("{} bytes of pinned host memory for {} are not to be had: {}",
                             bytes,
                             what,
                             cudaGetErrorString(error));
  }
  std::memset(data, 0, bytes);
  return Memory(static_cast<std::byte*>(data), bytes, [](std::byte* at, std::size_t) {
    FreeHostUnlessHung(at);
  });
}

void CudaDevice::CopyRows(void* to,
                          std::size_t to_stride,
                          const void* from,
                          std::size_t from_stride,
                          std::size_t bytes,
                          std::int64_t rows) {
  if (bytes == 0 || rows == 0 || !Use()) {
    return;
  }
  if (rows == 1 || (to_stride == bytes && from_stride == bytes)) {
    const std::size_t all = bytes * static_cast<std::size_t>(rows);
    Check(cudaMemcpyAsync(to, from, all, cudaMemcpyDefault, stream_), "a copy");
    return;
  }
  Check(cudaMemcpy2DAsync(to,
                          to_stride,
                          from,
                          from_stride,
                          bytes,
                          static_cast<std::size_t>(rows),
                          cudaMemcpyDefault,
                          stream_),
        "a copy of rows");
}

void CudaDevice::Zero(void* at, std::size_t bytes) {
  if (bytes > 0 && Use()) {
    Check(cudaMemsetAsync(at, 0, bytes, stream_), "zeroing");
  }
}

void CudaDevice::ZeroPages(std::byte* base,
                           std::size_t page_bytes,
                           std::span<const std::int32_t> pages) {
  for (const std::int32_t page : pages) {
    Zero(base + static_cast<std::size_t>(page) * page_bytes, page_bytes);
  }
}

Result<> CudaDevice::Wait() {
  INFERD_CHECK(!recording_);
  if (!Use()) {
    return *error_;
  }
  const CudaQueue::Waited waited = queue_.Wait();
  staging_.Reset();
  sample_staging_.Reset();
  steps_.done = steps_.begun;
  return Conclude(waited);
}

Result<> CudaDevice::Conclude(const CudaQueue::Waited& waited) {
  if (waited.error == cudaErrorNotReady) {
    error_ = Internal(
        "{} does not come to an end after {}; this worker ends", name_, waited.given_up->message());
  }
  Check(waited.error, "waiting for the stream");
  if (error_) {
    return *error_;
  }
  return waited.given_up ? Result<>(*waited.given_up) : Result<>();
}

const std::int32_t* CudaDevice::Stage(std::span<const std::int32_t> ids) {
  if (!Use()) {
    return nullptr;
  }
  const auto place = staging_.Take<std::int32_t>(ids.size());
  INFERD_CHECK_MSG(place.host != nullptr, "ids fit what was reserved");
  std::copy(ids.begin(), ids.end(), place.host);
  Check(Staging::Send(place, stream_), "token ids");
  return place.device;
}

void CudaDevice::ParallelFor(std::int64_t count,
                             void* context,
                             void (*fn)(void* context, std::int64_t index)) {
  team_->ForEach(count, context, fn);
}

std::size_t CudaActivations::ColumnBytes(std::int64_t columns) const {
  return static_cast<std::size_t>(columns) * sizeof(float);
}

void CudaActivations::CopyOut(std::int64_t rows, std::byte* out) const {
  device_->Copy(out, data_.data(), static_cast<std::size_t>(rows) * ColumnBytes(k_));
}

void CudaActivations::CopyIn(std::int64_t rows,
                             std::int64_t first,
                             std::int64_t columns,
                             const std::byte* in) {
  const std::size_t bytes = ColumnBytes(columns);
  device_->CopyRows(data_.data() + ColumnBytes(first), ColumnBytes(k_), in, bytes, bytes, rows);
  byte_rows_ = 0;
}

kernels::cuda::QuantisedRows CudaActivations::Bytes(bool floats) const {
  kernels::cuda::QuantisedRows rows;
  rows.type =
      (forms_ & kActRowFp8) != 0 ? kernels::cuda::ByteType::kFp8 : kernels::cuda::ByteType::kInt8;
  rows.values = reinterpret_cast<std::uint8_t*>(bytes_.data());
  rows.pitch = kernels::cuda::QuantisedRows::PitchOf(k_);
  rows.scales = scales_.floats();
  rows.y = floats && data_.bytes() > 0 ? data_.floats() : nullptr;
  rows.ldy = k_;
  return rows;
}

std::unique_ptr<Activations> CudaDevice::NewActivations(std::int64_t max_rows,
                                                        std::int64_t k,
                                                        unsigned forms) {
  const auto allocate = [&](std::size_t bytes) {
    Result<Memory> memory = Allocate(bytes, "activations");
    if (!memory.ok() && !error_) {
      error_ = memory.error();  // Wait tells it, before the first step.
    }
    return memory.ok() ? *std::move(memory) : Memory();
  };
  const bool bytes = (forms & (kActRowInt8 | kActRowFp8)) != 0;
  const auto count = static_cast<std::size_t>(max_rows);
  Memory data, values, scales;
  if (!bytes || (forms & (kActFloat | kActCarried)) != 0) {
    data = allocate(count * static_cast<std::size_t>(k) * sizeof(float));
  }
  if (bytes) {
    const auto pitch = static_cast<std::size_t>(kernels::cuda::QuantisedRows::PitchOf(k));
    values = allocate(count * pitch);
    scales = allocate(count * sizeof(float));
  }
  return std::make_unique<CudaActivations>(
      this, max_rows, k, forms, std::move(data), std::move(values), std::move(scales));
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
