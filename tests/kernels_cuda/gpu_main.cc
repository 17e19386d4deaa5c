// SPDX-License-Identifier: Apache-2.0
// The kernel tests' main on a GPU. Without one there is one line and the status 77, for "skipped".
// A build that has both kinds of devices must not take one for the other: that is an error with and
// without a GPU.
#include "device_fixture.h"
#include "ops/device.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  testing::InitGoogleTest(&argc, argv);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  const bool has_gpu = error == cudaSuccess && count > 0;
  const auto device = inferd::ops::MakeDevice(inferd::kernels::cuda::kTestDevice, 1, {});
  const std::string name = device.ok() ? (*device)->Describe() : "";
  if (device.ok() && (!has_gpu || name.find("Emulated") != std::string::npos)) {
    std::fprintf(stderr, "--device cuda is not a GPU in this build: %s\n", name.c_str());
    return 1;
  }
  if (!has_gpu) {
    std::fprintf(stderr,
                 "no CUDA device: %s\n",
                 error != cudaSuccess ? cudaGetErrorString(error) : "the driver finds none");
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
