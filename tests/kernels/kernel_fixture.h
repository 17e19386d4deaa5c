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

/// 64-byte aligned bytes, zeroed.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::size_t size) : storage_(size + 128) {}
  std::uint8_t* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    return storage_.data() + (64 - address % 64) % 64;
  }

 private:
  std::vector<std::uint8_t> storage_;
};

}  // namespace inferd::kernels
