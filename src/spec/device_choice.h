// SPDX-License-Identifier: Apache-2.0
// What --device says, as data: which kind of device runs the model, and which ones of this host.
#pragma once

#include "inferd/result.h"
#include "spec/parallel.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::spec {

enum class DeviceKind : std::uint8_t { kCpu, kCuda, kCudaEmu, kSim };

struct DeviceChoice {
  DeviceKind kind = DeviceKind::kCpu;
  /// Of each host, in the order of its ranks: indices ("0"), GPU or MIG UUIDs ("GPU-…", "MIG-…").
  /// Empty: the first ones.
  std::vector<std::string> names;
  /// How many emulated devices a host has; 0: as many as its ranks need.
  int emulated = 0;
  std::string sim;  // "sim:...", as given; cost/sim_device.h reads it
};

/// "cpu", "cuda", "cuda:0,2", "cuda:GPU-<uuid>", "cuda:MIG-<uuid>", "cuda-emu", "cuda-emu:4",
/// "sim:...".
Result<DeviceChoice> ParseDevice(std::string_view text);

/// Refuses what cannot work whatever the host has: a MIG slice in a group of ranks, a device twice.
Result<> CheckDevices(const DeviceChoice& choice, const ParallelSpec& parallel);

/// The device of the `local`-th rank of a host, as LoadRequest::device: "cpu", "cuda:2",
/// "cuda:MIG-<uuid>", "cuda-emu:1".
Result<std::string> DeviceOfRank(const DeviceChoice& choice, int local);

}  // namespace inferd::spec
