// SPDX-License-Identifier: Apache-2.0
// What weights take on a device, told without one: for whoever plans memory before a worker has
// started. Pure; any thread.
#pragma once

#include "base/dtype.h"

#include <cstdint>

namespace inferd::ops {

/// CPUs, and all that runs the CUDA kernels, the emulated device too.
enum class DeviceClass : std::uint8_t { kCpu, kGpu };

/// As Device::TakesScales and Device::TakesColumnOrder of every device of the class.
constexpr bool TakesScales(DeviceClass device) { return device == DeviceClass::kGpu; }
constexpr bool TakesColumnOrder(DeviceClass device) { return device == DeviceClass::kGpu; }

/// PackedMatrix::bytes of n rows of k values that Device::Pack takes, without scales and order,
/// which are 4 bytes each.
std::int64_t PackedBytes(DeviceClass device, DType type, std::int64_t n, std::int64_t k);

/// Of n rows of k values given to Device::MakeTable: its copy, or the stored rows where it reads
/// those in place.
std::int64_t TableBytes(DeviceClass device, DType type, std::int64_t n, std::int64_t k);

}  // namespace inferd::ops
