// SPDX-License-Identifier: Apache-2.0
#include "ops/nvml.h"

#include "base/error.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <memory>

namespace inferd::ops {
namespace {

// The part of NVML's C interface that is used; its numbers are fixed by its binary interface.
using Device = struct NvmlDeviceHandle*;
struct MemoryInfo {
  unsigned long long total, free, used;
};
constexpr int kSuccess = 0;
constexpr int kUncorrected = 1;
constexpr int kVolatile = 0;
constexpr int kPeerRead = 0;
constexpr unsigned kMaxLinks = 18;
constexpr unsigned kMaxGpus = 64;
constexpr unsigned kTextBytes = 96;

class Library {
 public:
  explicit Library(const char* name) : handle_(::dlopen(name, RTLD_NOW | RTLD_LOCAL), &::dlclose) {}

  explicit operator bool() const { return handle_ != nullptr; }
  /// Calls `name` if the library has it; its result, or -1.
  template <class... Args>
  int Call(const char* name, Args... args) const {
    const auto function = reinterpret_cast<int (*)(Args...)>(::dlsym(handle_.get(), name));
    return function == nullptr ? -1 : function(args...);
  }

 private:
  std::unique_ptr<void, int (*)(void*)> handle_;
};

std::string Text(const Library& nvml, const char* function, Device device) {
  std::array<char, kTextBytes> text{};
  const int result = nvml.Call(function, device, text.data(), kTextBytes);
  return result == kSuccess ? std::string(text.data()) : std::string("unknown");
}

GpuPath PathOf(int level) {
  switch (level) {
    case 0:
      return GpuPath::kSameBoard;
    case 10:
      return GpuPath::kOneSwitch;
    case 20:
      return GpuPath::kManySwitches;
    case 30:
      return GpuPath::kHostBridge;
    case 40:
      return GpuPath::kSameNumaNode;
    case 50:
      return GpuPath::kAcrossSockets;
    default:
      return GpuPath::kUnknown;
  }
}

GpuInfo ReadGpu(const Library& nvml, Device device, int index) {
  GpuInfo gpu;
  gpu.index = index;
  gpu.name = Text(nvml, "nvmlDeviceGetName", device);
  gpu.uuid = Text(nvml, "nvmlDeviceGetUUID", device);
  MemoryInfo memory{};
  if (nvml.Call("nvmlDeviceGetMemoryInfo", device, &memory) == kSuccess) {
    gpu.total_bytes = static_cast<std::int64_t>(memory.total);
    gpu.free_bytes = static_cast<std::int64_t>(memory.free);
  }
  unsigned current = 0;
  unsigned pending = 0;
  gpu.mig =
      nvml.Call("nvmlDeviceGetMigMode", device, &current, &pending) == kSuccess && current != 0;
  for (unsigned link = 0; link < kMaxLinks; ++link) {
    int up = 0;
    if (nvml.Call("nvmlDeviceGetNvLinkState", device, link, &up) == kSuccess) {
      ++(up != 0 ? gpu.nvlinks : gpu.down_links);
    }
  }
  unsigned long long errors = 0;
  if (nvml.Call("nvmlDeviceGetTotalEccErrors", device, kUncorrected, kVolatile, &errors) ==
      kSuccess) {
    gpu.uncorrected_errors = static_cast<std::int64_t>(errors);
  }
  std::array<unsigned, 4> rows{};  // corrected, uncorrected, pending, failed
  if (nvml.Call("nvmlDeviceGetRemappedRows", device, &rows[0], &rows[1], &rows[2], &rows[3]) ==
      kSuccess) {
    gpu.remap_pending = rows[2] != 0;
    gpu.remap_failed = rows[3] != 0;
  }
  return gpu;
}

GpuHost ReadHost(const Library& nvml) {
  GpuHost host;
  std::array<char, kTextBytes> driver{};
  if (nvml.Call("nvmlSystemGetDriverVersion", driver.data(), kTextBytes) == kSuccess) {
    host.driver = driver.data();
  }
  (void)nvml.Call("nvmlSystemGetCudaDriverVersion_v2", &host.cuda_version);
  unsigned count = 0;
  (void)nvml.Call("nvmlDeviceGetCount_v2", &count);
  std::vector<Device> devices;
  for (unsigned i = 0; i < std::min(count, kMaxGpus); ++i) {
    Device device = nullptr;
    const int result = nvml.Call("nvmlDeviceGetHandleByIndex_v2", i, &device);
    if (result == kSuccess) {
      devices.push_back(device);
      host.gpus.push_back(ReadGpu(nvml, device, static_cast<int>(i)));
    } else {
      host.lost.push_back({static_cast<int>(i), result});
    }
  }
  for (std::size_t a = 0; a < devices.size(); ++a) {
    for (std::size_t b = a + 1; b < devices.size(); ++b) {
      GpuPair pair;
      pair.a = host.gpus[a].index;
      pair.b = host.gpus[b].index;
      int level = -1;
      if (nvml.Call("nvmlDeviceGetTopologyCommonAncestor", devices[a], devices[b], &level) ==
          kSuccess) {
        pair.path = PathOf(level);
      }
      int status = -1;
      pair.peer_access =
          nvml.Call("nvmlDeviceGetP2PStatus", devices[a], devices[b], kPeerRead, &status) ==
              kSuccess &&
          status == 0;
      host.pairs.push_back(pair);
    }
  }
  return host;
}

}  // namespace

Result<GpuHost> ReadGpus(const char* library) {
  const Library nvml(library);
  if (!nvml) {
    return Unavailable("{} is not there: no NVIDIA driver on this host", library);
  }
  if (const int result = nvml.Call("nvmlInit_v2"); result != kSuccess) {
    return Unavailable(
        "NVML does not start (error {}): the driver is not loaded, or of another "
        "version than its libraries; `nvidia-smi` says more",
        result);
  }
  GpuHost host = ReadHost(nvml);
  (void)nvml.Call("nvmlShutdown");
  return host;
}

Result<std::string> NcclVersion(const char* library) {
  const Library nccl(library);
  int version = 0;
  if (!nccl || nccl.Call("ncclGetVersion", &version) != 0) {
    return Unavailable("{} is not there", library);
  }
  // 2.9 and later: 10000 * major + 100 * minor + patch.
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Result<std::string> CublasLtVersion(std::initializer_list<const char*> libraries) {
  for (const char* const name : libraries) {
    const Library library(name);
    // Versions fit an int, which is what the low half of the result is.
    if (const int version = library ? library.Call("cublasLtGetVersion") : -1; version > 0) {
      return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
    }
  }
  return Unavailable("{} is not there", *libraries.begin());
}

}  // namespace inferd::ops
