// SPDX-License-Identifier: Apache-2.0
// Random stored weights of every type, and the kernel tables this CPU can run.
#pragma once

#include "base/dtype.h"
#include "kernels/kernels.h"

#include <cstdint>
#include <string>
#include <vector>

namespace inferd::kernels {

/// splitmix64: the same numbers on every machine.
class TestRandom {
 public:
  explicit TestRandom(std::uint64_t seed) : state_(seed) {}
  std::uint64_t Next();
  float Uniform();  // [0, 1)
  float Normal();

 private:
  std::uint64_t state_;
};

/// n rows of k values: every quant pattern, scales of a usual size.
std::vector<std::byte> RandomRows(DType type, std::int64_t n, std::int64_t k, TestRandom& random);

std::int64_t RowBytes(DType type, std::int64_t k);

/// All types a weight may have.
std::vector<DType> WeightTypes();

/// Scalar always; the others as far as the CPU has them.
std::vector<const KernelTable*> Tables();

/// Zeroed bytes that end where an unreadable page begins: a kernel that reads or writes past them
/// dies, in assembly too. Aligned to 64 when the size is a multiple of 64.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t size);
  ~GuardedBytes();
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  std::uint8_t* data() const { return data_; }
  template <class T>
  T* As() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void* mapping_;
  std::size_t mapped_;
  std::uint8_t* data_;
};

}  // namespace inferd::kernels
