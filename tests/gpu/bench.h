// SPDX-License-Identifier: Apache-2.0
// What kernel_sweep times on: one stream, device memory full of noise, a stopwatch, JSON lines.
#pragma once

#include "base/error.h"
#include "kernels/cuda/stream.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace inferd::gpu {

struct FreeOnDevice {
  void operator()(std::byte* at) const;
};
/// Owns device memory.
using DeviceBytes = std::unique_ptr<std::byte, FreeOnDevice>;

class Bench {
 public:
  /// kUnavailable when there is no device. `tiny`: one launch of each, for the emulated device.
  static Result<std::unique_ptr<Bench>> Make(bool tiny);
  ~Bench();
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  bool tiny() const { return tiny_; }
  kernels::cuda::Stream stream() const { return stream_; }

  /// Device memory of noise.h's bits.
  Result<DeviceBytes> Fill(std::size_t bytes);
  Result<DeviceBytes> Upload(const void* from, std::size_t bytes);
  template <class T>
  Result<DeviceBytes> Upload(const std::vector<T>& values) {
    return Upload(values.data(), values.size() * sizeof(T));
  }

  /// How many pieces of `bytes` a sweep goes through in turn, so that no cache (50 MB of an H200)
  /// holds what comes next; at most `most`.
  std::int64_t Pieces(std::size_t bytes, std::int64_t most = 64) const;

  /// Seconds of one launch(i), i counting up: the mean over some 40 ms of launches in a row.
  Result<double> Seconds(const std::function<kernels::cuda::Status(std::int64_t)>& launch);

  /// One JSON line, seen at once; `fields` without braces.
  template <class... Args>
  void Print(fmt::format_string<Args...> fields, Args&&... args) const {
    fmt::print("{{{}}}\n", fmt::format(fields, std::forward<Args>(args)...));
    std::fflush(stdout);
  }

 private:
  explicit Bench(bool tiny) : tiny_(tiny) {}

  const bool tiny_;
  kernels::cuda::Stream stream_ = nullptr;
  DeviceBytes noise_;
};

// The sweeps; each prints its lines.
Result<> SweepCopies(Bench& bench);           // between device and host, and on the device
Result<> SweepRows(Bench& bench);             // norm and sampling
Result<> SweepSmallMatMul(Bench& bench);      // 1 to 64 rows, per stored type
Result<> SweepLargeMatMul(Bench& bench);      // 512 rows and more
Result<> SweepExperts(Bench& bench);          // grouped products of a mixture
Result<> SweepW8A8(Bench& bench);             // 8-bit weights and activations
Result<> SweepDecodeAttention(Bench& bench);  // over batch and context
Result<> SweepPrefillAttention(Bench& bench);
Result<> SweepCublas(Bench& bench);  // NVIDIA's products, to compare with; if it is installed

}  // namespace inferd::gpu
