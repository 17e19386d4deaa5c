// SPDX-License-Identifier: Apache-2.0
// The only file that knows hwloc, and NVML by its C interface: the driver's library is opened at
// run time, so that the same binary runs without it.
#include "plan/host_topology.h"

#include "base/error.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <hwloc.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace inferd::plan {
namespace {

constexpr unsigned kMaxDevices = 1024;
constexpr unsigned kMaxLinks = 18;  // NVLinks of a device

/// The functions of libnvidia-ml.so.1 that are used; their numbers are part of its stable
/// interface.
class Nvml {
 public:
  using Device = void*;
  using InitFn = int (*)();
  using CountFn = int (*)(unsigned*);
  using HandleFn = int (*)(unsigned, Device*);
  using AncestorFn = int (*)(Device, Device, int*);
  using P2pFn = int (*)(Device, Device, int, int*);
  using LinkFn = int (*)(Device, unsigned, int*);

  static std::unique_ptr<Nvml> Open() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      return nullptr;
    }
    auto nvml = std::make_unique<Nvml>();
    nvml->library_ = library;
    const bool found = nvml->Find("nvmlInit_v2", &nvml->init_) &&
                       nvml->Find("nvmlShutdown", &nvml->shutdown_) &&
                       nvml->Find("nvmlDeviceGetCount_v2", &nvml->count_) &&
                       nvml->Find("nvmlDeviceGetHandleByIndex_v2", &nvml->handle_) &&
                       nvml->Find("nvmlDeviceGetTopologyCommonAncestor", &nvml->ancestor_) &&
                       nvml->Find("nvmlDeviceGetP2PStatus", &nvml->p2p_) &&
                       nvml->Find("nvmlDeviceGetNvLinkState", &nvml->link_);
    if (!found || nvml->init_() != 0) {
      return nullptr;
    }
    nvml->started_ = true;
    return nvml;
  }
  Nvml() = default;
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (started_) {
      shutdown_();
    }
    if (library_ != nullptr) {
      dlclose(library_);
    }
  }

  std::vector<Device> Devices() const {
    unsigned count = 0;
    std::vector<Device> devices;
    if (count_(&count) != 0) {
      return devices;
    }
    for (unsigned i = 0; i < std::min(count, kMaxDevices); ++i) {
      Device device = nullptr;
      if (handle_(i, &device) == 0) {
        devices.push_back(device);
      }
    }
    return devices;
  }

  Path PathOf(Device a, Device b) const {
    constexpr int kOverNvlink = 2;  // NVML_P2P_CAPS_INDEX_NVLINK
    int status = 1;
    if (p2p_(a, b, kOverNvlink, &status) == 0 && status == 0) {
      return {PathKind::kNvlink, ActiveLinks(a)};
    }
    int level = 0;
    if (ancestor_(a, b, &level) != 0) {
      return {PathKind::kSys, 0};
    }
    // NVML_TOPOLOGY_SINGLE, MULTIPLE, HOSTBRIDGE, NODE.
    return {level <= 10   ? PathKind::kPix
            : level <= 20 ? PathKind::kPxb
            : level <= 30 ? PathKind::kPhb
            : level <= 40 ? PathKind::kNode
                          : PathKind::kSys,
            0};
  }

 private:
  template <class Function>
  bool Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
    return *function != nullptr;
  }
  int ActiveLinks(Device device) const {
    int active = 0;
    for (unsigned link = 0; link < kMaxLinks; ++link) {
      int on = 0;
      active += link_(device, link, &on) == 0 && on == 1 ? 1 : 0;
    }
    return active;
  }

  void* library_ = nullptr;
  bool started_ = false;
  InitFn init_ = nullptr, shutdown_ = nullptr;
  CountFn count_ = nullptr;
  HandleFn handle_ = nullptr;
  AncestorFn ancestor_ = nullptr;
  P2pFn p2p_ = nullptr;
  LinkFn link_ = nullptr;
};

std::optional<Topology> GpuTopology() {
  const std::unique_ptr<Nvml> nvml = Nvml::Open();
  if (nvml == nullptr) {
    return std::nullopt;
  }
  const std::vector<Nvml::Device> devices = nvml->Devices();
  if (devices.empty()) {
    return std::nullopt;
  }
  Topology topology;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    topology.devices.push_back({fmt::format("GPU{}", i), true, {}, -1});
    std::vector<Path> row;
    for (std::size_t j = 0; j < devices.size(); ++j) {
      // The upper half decides, so that the matrix is symmetric.
      row.push_back(i == j  ? Path{PathKind::kSelf, 0}
                    : j < i ? topology.paths[j][i]
                            : nvml->PathOf(devices[i], devices[j]));
    }
    topology.paths.push_back(std::move(row));
  }
  FindDomains(&topology);
  return topology;
}

struct DestroyTopology {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};

int NodeOf(hwloc_obj_t core) {
  const int node = core->nodeset == nullptr ? -1 : hwloc_bitmap_first(core->nodeset);
  return std::max(node, 0);
}

}  // namespace

Result<Topology> CoreTopology() {
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0) {
    return Internal("hwloc cannot be started");
  }
  const std::unique_ptr<hwloc_topology, DestroyTopology> hardware(made);
  if (hwloc_topology_load(made) != 0) {
    return Internal("hwloc cannot read this host");
  }
  const int found = hwloc_get_nbobjs_by_type(made, HWLOC_OBJ_CORE);
  if (found < 1) {
    return Internal("hwloc sees no core on this host");
  }
  const unsigned count = std::min(static_cast<unsigned>(found), kMaxDevices);
  Topology topology;
  std::vector<hwloc_obj_t> caches;
  for (unsigned i = 0; i < count; ++i) {
    hwloc_obj_t core = hwloc_get_obj_by_type(made, HWLOC_OBJ_CORE, i);
    TopologyDevice device;
    device.name = fmt::format("core{}", i);
    device.numa_node = NodeOf(core);
    for (int cpu = hwloc_bitmap_first(core->cpuset); cpu >= 0;
         cpu = hwloc_bitmap_next(core->cpuset, cpu)) {
      device.cpus.push_back(cpu);
    }
    topology.devices.push_back(std::move(device));
    caches.push_back(hwloc_get_ancestor_obj_by_type(made, HWLOC_OBJ_L3CACHE, core));
  }
  for (unsigned i = 0; i < count; ++i) {
    std::vector<Path> row;
    for (unsigned j = 0; j < count; ++j) {
      const bool near = topology.devices[i].numa_node == topology.devices[j].numa_node;
      const bool shared = caches[i] != nullptr && caches[i] == caches[j];
      row.push_back({i == j   ? PathKind::kSelf
                     : shared ? PathKind::kCache
                     : near   ? PathKind::kNode
                              : PathKind::kSys,
                     0});
    }
    topology.paths.push_back(std::move(row));
  }
  FindDomains(&topology);
  return topology;
}

Result<Topology> HostTopology() {
  if (std::optional<Topology> gpus = GpuTopology()) {
    return *std::move(gpus);
  }
  return CoreTopology();
}

}  // namespace inferd::plan
