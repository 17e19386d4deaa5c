// SPDX-License-Identifier: Apache-2.0
// The kernel tests' main on a GPU: without one there is one line and the status 77, for "skipped".
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  testing::InitGoogleTest(&argc, argv);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    std::fprintf(stderr,
                 "no CUDA device: %s\n",
                 error != cudaSuccess ? cudaGetErrorString(error) : "the driver finds none");
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
