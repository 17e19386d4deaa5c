// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/cuda_select.h"

#include "base/error.h"
#include "ops/cuda/cuda_device.h"

#include <charconv>
#include <cstdlib>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

Result<int> CountDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice ||
      (error == cudaSuccess && count == 0)) {
    (void)cudaGetLastError();
    return Unavailable(
        "no CUDA device: {}. `nvidia-smi -L` lists what the driver sees; in a container give it "
        "the "
        "GPUs (--gpus all); without a GPU use --device cpu",
        error == cudaErrorInsufficientDriver
            ? "there is no NVIDIA driver, or it is older than this build's CUDA"
            : "the driver finds none");
  }
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return Unavailable(
        "no CUDA device: CUDA error {} ({})", static_cast<int>(error), cudaGetErrorString(error));
  }
  return count;
}

Result<std::vector<std::int64_t>> DeviceBytes() {
  INFERD_ASSIGN(const int count, CountDevices());
  std::vector<std::int64_t> bytes;
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties{};
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, index);
        error != cudaSuccess) {
      return Unavailable("CUDA device {} does not answer: {}", index, cudaGetErrorString(error));
    }
    bytes.push_back(static_cast<std::int64_t>(properties.totalGlobalMem));
  }
  return bytes;
}

Result<int> FindDevice(std::string_view name) {
  int index = 0;
  if (name.starts_with("GPU-") || name.starts_with("MIG-")) {
    // The driver knows slices by this variable only. It reads it at the first call.
    setenv("CUDA_VISIBLE_DEVICES", std::string(name).c_str(), 1);
  } else {
    const char* const end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data(), end, index);
    if (error != std::errc() || at != end || index < 0) {
      return InvalidArgument("'{}' names no CUDA device: use an index, GPU-<uuid> or MIG-<uuid>",
                             name);
    }
  }
  INFERD_ASSIGN(const int count, CountDevices());
  if (index >= count) {
    return NotFound("there is no CUDA device {}: this host has {}, numbered from 0", name, count);
  }
  return index;
}

Result<std::string> DescribeDevice(int index, std::string_view name) {
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
    return Internal(
        "asking for the properties of CUDA device {}: {}", name, cudaGetErrorString(error));
  }
  return fmt::format("{}:{} {}, {:.1f} GiB, sm_{}{}",
                     INFERD_CUDA_NAME,
                     name,
                     properties.name,
                     static_cast<double>(properties.totalGlobalMem) / (1U << 30U),
                     properties.major,
                     properties.minor);
}

std::string DeviceId(int index, std::string_view name) {
  if (std::string_view(INFERD_CUDA_NAME) != "cuda") {
    return fmt::format("EMU-{}", name);  // each process has its own device 0
  }
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) {
    (void)cudaGetLastError();
    return fmt::format("GPU-{}", name);
  }
  // Of a slice CUDA gives the slice's UUID, and a name like "NVIDIA H200 MIG 1g.18gb".
  const bool is_slice = std::string_view(properties.name).find(" MIG ") != std::string_view::npos;
  std::string id = is_slice ? "MIG-" : "GPU-";
  for (std::size_t i = 0; i < sizeof(properties.uuid.bytes); ++i) {
    const bool begins_part = i == 4 || i == 6 || i == 8 || i == 10;
    id += fmt::format("{}{:02x}",
                      begins_part ? "-" : "",
                      static_cast<unsigned>(static_cast<unsigned char>(properties.uuid.bytes[i])));
  }
  return id;
}

Result<std::unique_ptr<Device>> MakeDevice(const CudaOptions& options) {
  // Each process emulates its own devices: one is enough, whatever the leader calls it.
  const bool is_emulated = std::string_view(INFERD_CUDA_NAME) != "cuda";
  INFERD_ASSIGN(const int index, is_emulated ? FindDevice("0") : FindDevice(options.name));
  INFERD_ASSIGN(std::string name, DescribeDevice(index, options.name));
  INFERD_ASSIGN(std::unique_ptr<ThreadTeam> team, ThreadTeam::Make(options.threads, options.cpus));
  auto device = std::make_unique<CudaDevice>(
      index, std::move(name), DeviceId(index, options.name), std::move(team));
  INFERD_TRY(device->Init());
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
