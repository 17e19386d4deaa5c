// SPDX-License-Identifier: Apache-2.0
// What NVIDIA's management library tells of this host's GPUs: names, memory, links, health. Loaded
// at run time, so that a host without a driver runs the same binary.
#pragma once

#include "inferd/result.h"

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace inferd::ops {

struct GpuInfo {
  int index = 0;
  std::string name;
  std::string uuid;
  std::int64_t total_bytes = 0;
  std::int64_t free_bytes = 0;
  bool mig = false;                                // cut into slices
  int nvlinks = 0;                                 // that are up
  int down_links = 0;                              // that are there and not up
  std::optional<std::int64_t> uncorrected_errors;  // of memory, since the driver was loaded
  bool remap_pending = false;                      // bad memory rows: a reset mends them
  bool remap_failed = false;                       // bad memory rows that cannot be replaced
};

/// How two GPUs reach each other.
enum class GpuPath : std::uint8_t {
  kSameBoard,
  kOneSwitch,     // a single PCIe switch
  kManySwitches,  // PCIe switches
  kHostBridge,    // the CPU's PCIe host bridge
  kSameNumaNode,
  kAcrossSockets,
  kUnknown,
};

struct GpuPair {
  int a = 0;
  int b = 0;
  GpuPath path = GpuPath::kUnknown;
  bool peer_access = false;
};

/// A device that the driver counts and does not hand out.
struct LostGpu {
  int index = 0;
  int error = 0;  // of NVML: 15, it has fallen off the bus
};

struct GpuHost {
  std::string driver;    // "580.65.06"
  int cuda_version = 0;  // newest that the driver knows: 13000
  std::vector<GpuInfo> gpus;
  std::vector<LostGpu> lost;
  std::vector<GpuPair> pairs;  // a < b
};

/// kUnavailable: there is no driver, or it does not answer.
Result<GpuHost> ReadGpus(const char* library = "libnvidia-ml.so.1");

/// "2.27.3" of the installed NCCL; kUnavailable: none is found.
Result<std::string> NcclVersion(const char* library = "libnccl.so.2");

/// "13.0.2" of the first of these cuBLASLt libraries that is installed; kUnavailable: none is.
Result<std::string> CublasLtVersion(std::initializer_list<const char*> libraries = {
                                        "libcublasLt.so.13", "libcublasLt.so.12"});

}  // namespace inferd::ops
