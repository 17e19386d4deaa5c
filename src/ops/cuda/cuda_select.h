// SPDX-License-Identifier: Apache-2.0
// Finding the device that a name means.
#pragma once

#include "ops/device.h"

#include <string>
#include <string_view>

namespace inferd::ops::INFERD_CUDA_NAMESPACE {

/// Devices of this process. kUnavailable: none, and why in one sentence.
Result<int> CountDevices();

/// Memory of each.
Result<std::vector<std::int64_t>> DeviceBytes();

/// CUDA's index of the device called `name` (see CudaOptions).
Result<int> FindDevice(std::string_view name);

/// "cuda:0 NVIDIA H200, 139 GiB, sm_90".
Result<std::string> DescribeDevice(int index, std::string_view name);

/// "GPU-<uuid>", of a MIG slice "MIG-<uuid>", of an emulated device "EMU-<name>".
std::string DeviceId(int index, std::string_view name);

Result<std::unique_ptr<Device>> MakeDevice(const CudaOptions& options);

}  // namespace inferd::ops::INFERD_CUDA_NAMESPACE
