// SPDX-License-Identifier: Apache-2.0
// Device memory with a guarded end, and random inputs, for the tests of device kernels. The same
// tests run on the emulated device (INFERD_SIMT) and, as nvcc compiled the kernels, on a GPU.
#pragma once

#include "kernels/cuda/stream.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace inferd::kernels::cuda {

/// The race detector takes ten times as long: sweeps keep a few of their cases.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kFewCases = true;
#else
inline constexpr bool kFewCases = false;
#endif

/// For ops::MakeDevice.
#ifdef INFERD_SIMT
inline constexpr const char* kTestDevice = "cuda-emu";
#else
inline constexpr const char* kTestDevice = "cuda";
#endif

#define EXPECT_OK(call) EXPECT_EQ((call), Status::kOk)

/// `count` values on the device; a write past them fails the test at the next Download.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(&data_, count * sizeof(T) + kGuard), cudaSuccess);
    EXPECT_EQ(cudaMemset(data_, 0xFF, count * sizeof(T) + kGuard), cudaSuccess);
    WaitForTheDefaultStream();
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    Upload(values);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return data_; }
  std::size_t size() const { return count_; }

  void Upload(const std::vector<T>& values) {
    ASSERT_LE(values.size(), count_);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
    WaitForTheDefaultStream();
  }

  std::vector<T> Download() const {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<T> values(count_);
    std::vector<unsigned char> guard(kGuard);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_EQ(cudaMemcpy(guard.data(), data_ + count_, kGuard, cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_EQ(guard, std::vector<unsigned char>(kGuard, 0xFF)) << "written past the end";
    return values;
  }

 private:
  // On a GPU these calls return before the memory has changed, and other streams do not wait.
  static void WaitForTheDefaultStream() { EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess); }

  static constexpr std::size_t kGuard = 256;
  std::size_t count_;
  T* data_ = nullptr;
};

/// The same normal numbers on every machine.
inline std::vector<float> RandomFloats(std::size_t count, unsigned seed, float scale = 1) {
  std::mt19937 engine(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    float sum = -6;  // the sum of twelve uniform numbers is near enough to normal
    for (int i = 0; i < 12; ++i) {
      sum += static_cast<float>(engine() >> 8) * 0x1p-24F;
    }
    value = scale * sum;
  }
  return values;
}

/// Largest |got - want| in units of the largest |want|, or of `least` where all are smaller; NaN
/// and infinities give infinity.
inline double RelativeError(const std::vector<float>& got,
                            const std::vector<double>& want,
                            double least = 1e-30) {
  EXPECT_EQ(got.size(), want.size());
  double error = 0;
  double top = least;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(got[i])) {
      return HUGE_VAL;
    }
    error = std::max(error, std::fabs(got[i] - want[i]));
    top = std::max(top, std::fabs(want[i]));
  }
  return error / top;
}

}  // namespace inferd::kernels::cuda
