// SPDX-License-Identifier: Apache-2.0
// From a device's name to a device; which backends there are is the build's choice.
#include "base/error.h"
#include "ops/device.h"

#if INFERD_HAS_CUDA
namespace inferd::ops::cuda {
Result<std::unique_ptr<Device>> MakeDevice(const CudaOptions& options);
Result<std::vector<std::int64_t>> DeviceBytes();
}  // namespace inferd::ops::cuda
#endif
#if INFERD_HAS_CUDA_EMU
namespace inferd::ops::cuda_emu {
Result<std::unique_ptr<Device>> MakeDevice(const CudaOptions& options);
}  // namespace inferd::ops::cuda_emu
#endif

namespace inferd::ops {

#if INFERD_HAS_CUDA
Result<std::vector<std::int64_t>> CudaDeviceBytes() { return cuda::DeviceBytes(); }

Result<std::unique_ptr<Device>> MakeCudaDevice(const CudaOptions& options) {
  return cuda::MakeDevice(options);
}
#else
Result<std::vector<std::int64_t>> CudaDeviceBytes() {
  return Unavailable(
      "no CUDA device: this build has no CUDA backend; use --device cpu, or a build of the CMake "
      "preset cuda");
}

Result<std::unique_ptr<Device>> MakeCudaDevice(const CudaOptions&) {
  return CudaDeviceBytes().error();
}
#endif

#if INFERD_HAS_CUDA_EMU
Result<std::unique_ptr<Device>> MakeCudaEmuDevice(const CudaOptions& options) {
  return cuda_emu::MakeDevice(options);
}
#else
Result<std::unique_ptr<Device>> MakeCudaEmuDevice(const CudaOptions&) {
  return Unimplemented("this build leaves out the emulated device (INFERD_CUDA_EMU=OFF)");
}
#endif

Result<std::unique_ptr<Device>> MakeDevice(std::string_view device,
                                           int threads,
                                           std::span<const int> cpus,
                                           bool bf16_dot) {
  if (device == "cpu") {
    return MakeCpuDevice({.threads = threads, .cpus = cpus, .bf16_dot = bf16_dot});
  }
  const std::size_t colon = device.find(':');
  const std::string_view kind = device.substr(0, colon);
  CudaOptions options;
  options.threads = threads;
  options.cpus = cpus;
  if (colon != std::string_view::npos) {
    options.name = device.substr(colon + 1);
  }
  if (kind == "cuda") {
    return MakeCudaDevice(options);
  }
  if (kind == "cuda-emu") {
    return MakeCudaEmuDevice(options);
  }
  return InvalidArgument("there is no device '{}'; use cpu, cuda or cuda-emu", device);
}

}  // namespace inferd::ops
