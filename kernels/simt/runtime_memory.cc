// SPDX-License-Identifier: Apache-2.0
// Devices and their memory. Device memory is host memory with a ledger: who allocated how much
// where.
#include "kernels/simt/runtime_api.h"
#include "kernels/simt/runtime_state.h"
#include "kernels/simt/runtime_streams.h"
#include "kernels/simt/settings.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace inferd::simt {
namespace {

struct Allocation {
  std::size_t bytes;
  int device;
};

struct Fault {
  cudaError_t error = cudaSuccess;
  cudaError_t pending = cudaSuccess;
  int launches_left = 0;
};

constexpr int kMaxDevices = 64;

struct Ledger {
  std::mutex mutex;
  std::map<std::uintptr_t, Allocation> allocations;
  std::map<std::uintptr_t, std::size_t> pinned;  // bytes of each piece
  std::size_t used[kMaxDevices] = {};
  Fault faults[kMaxDevices];
  std::map<const void*, int> shared_limits;
};

Ledger& TheLedger() {
  static Ledger ledger;
  return ledger;
}

constinit thread_local int t_device = 0;
constinit thread_local cudaError_t t_error = cudaSuccess;

// What an allocation of so many bytes takes, and begins at a multiple of.
std::size_t Alignment(std::size_t bytes) { return bytes < kPageBytes ? 256 : kPageBytes; }
std::size_t Room(std::size_t bytes) {
  return (bytes + Alignment(bytes) - 1) / Alignment(bytes) * Alignment(bytes);
}

constexpr std::size_t kDefaultShared = 48U << 10;
constexpr int kMaxShared = 227 << 10;

}  // namespace

cudaError_t Keep(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) {
    t_error = error;
  }
  return error;
}

cudaError_t DeviceState() {
  if (GetSettings().devices == 0) {
    return Keep(cudaErrorNoDevice);
  }
  Ledger& ledger = TheLedger();
  const std::lock_guard lock(ledger.mutex);
  return Keep(ledger.faults[t_device].error);
}

bool IsDeviceMemory(const void* pointer, std::size_t bytes) {
  Ledger& ledger = TheLedger();
  const std::lock_guard lock(ledger.mutex);
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  auto next = ledger.allocations.upper_bound(begin);
  if (next == ledger.allocations.begin()) {
    return bytes == 0;
  }
  --next;
  return begin + bytes <= next->first + next->second.bytes;
}

std::size_t AllocationAt(const void* pointer) {
  Ledger& ledger = TheLedger();
  const std::lock_guard lock(ledger.mutex);
  const auto found = ledger.allocations.find(reinterpret_cast<std::uintptr_t>(pointer));
  return found != ledger.allocations.end() ? found->second.bytes : 0;
}

bool IsPinnedMemory(const void* pointer, std::size_t bytes) {
  Ledger& ledger = TheLedger();
  const std::lock_guard lock(ledger.mutex);
  const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
  auto next = ledger.pinned.upper_bound(begin);
  if (next == ledger.pinned.begin()) {
    return bytes == 0;
  }
  --next;
  return begin + bytes <= next->first + next->second;
}

void SetDeviceFault(int device, cudaError_t error) {
  Ledger& ledger = TheLedger();
  const std::lock_guard lock(ledger.mutex);
  ledger.faults[device] = {error, cudaSuccess, 0};
}

void SetFaultAfterLaunches(int device, int launches, cudaError_t error) {
  Ledger& ledger = TheLedger();
  const std::lock_guard lock(ledger.mutex);
  ledger.faults[device] = {cudaSuccess, error, launches};
}

cudaError_t SetSharedLimit(const void* kernel, int bytes) {
  if (bytes > kMaxShared) {
    return Keep(cudaErrorInvalidValue);
  }
  Ledger& ledger = TheLedger();
  const std::lock_guard lock(ledger.mutex);
  ledger.shared_limits[kernel] = bytes;
  return cudaSuccess;
}

cudaError_t CountLaunches(int launches) {
  if (const cudaError_t state = DeviceState(); state != cudaSuccess) {
    return state;
  }
  Ledger& ledger = TheLedger();
  const std::lock_guard lock(ledger.mutex);
  Fault& fault = ledger.faults[t_device];
  if (fault.pending != cudaSuccess && (fault.launches_left -= launches) < 0) {
    fault = {fault.pending, cudaSuccess, 0};
    return Keep(fault.error);
  }
  return cudaSuccess;
}

cudaError_t CheckLaunch(const void* kernel,
                        const char* name,
                        dim3 grid,
                        dim3 block,
                        std::size_t shared_bytes,
                        cudaStream_t stream) {
  if (const cudaError_t state = CountLaunches(CountCaptured(stream) ? 0 : 1);
      state != cudaSuccess) {
    return state;
  }
  Ledger& ledger = TheLedger();
  const std::lock_guard lock(ledger.mutex);
  const auto found = ledger.shared_limits.find(kernel);
  const std::size_t limit = found == ledger.shared_limits.end()
                                ? kDefaultShared
                                : static_cast<std::size_t>(found->second);
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || grid.x == 0 || grid.y == 0 || grid.z == 0 ||
      grid.y > 65535 || grid.z > 65535 || grid.x > 0x7fffffffU || block.z > 64 ||
      shared_bytes > limit) {
    std::fprintf(stderr,
                 "EMU: bad launch of %s: grid (%u,%u,%u), %llu threads, %zu bytes of shared memory "
                 "(limit %zu)\n",
                 name,
                 grid.x,
                 grid.y,
                 grid.z,
                 static_cast<unsigned long long>(threads),
                 shared_bytes,
                 limit);
    return Keep(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

}  // namespace inferd::simt

using inferd::simt::DeviceState;
using inferd::simt::GetSettings;
using inferd::simt::Keep;
using inferd::simt::RefuseInCapture;
using inferd::simt::t_device;
using inferd::simt::t_error;
using inferd::simt::TheLedger;

cudaError_t cudaGetLastError() { return std::exchange(t_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return t_error; }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorECCUncorrectable:
      return "cudaErrorECCUncorrectable";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    default:
      return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : cudaGetErrorName(error);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = GetSettings().devices;
  return *count == 0 ? Keep(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= GetSettings().devices) {
    return Keep(cudaErrorInvalidDevice);
  }
  t_device = device;
  return DeviceState();
}
cudaError_t cudaGetDevice(int* device) {
  *device = t_device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= GetSettings().devices) {
    return Keep(cudaErrorInvalidDevice);
  }
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "Emulated device");
  std::memcpy(properties->uuid.bytes, "inferd-emulated", 15);
  properties->uuid.bytes[15] = static_cast<char>(device);
  properties->totalGlobalMem = GetSettings().device_bytes;
  properties->sharedMemPerBlockOptin = 227U << 10;
  properties->major = 8;
  properties->minor = 0;
  properties->multiProcessorCount = 4;
  properties->pciBusID = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) {
    return error;
  }
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return cudaSuccess;
  }
  return Keep(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(
      text, static_cast<std::size_t>(size), "0000:%02x:00.0", static_cast<unsigned>(device));
  return cudaSuccess;
}

cudaError_t cudaDeviceReset() { return cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer ? 1 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return DeviceState(); }

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  if (const cudaError_t state = DeviceState(); state != cudaSuccess) {
    return state;
  }
  auto& ledger = TheLedger();
  const std::lock_guard lock(ledger.mutex);
  *total = GetSettings().device_bytes;
  *free = *total - std::min(*total, ledger.used[t_device]);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  *pointer = nullptr;
  if (const cudaError_t error = RefuseInCapture(); error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t state = DeviceState(); state != cudaSuccess || bytes == 0) {
    return state;
  }
  auto& ledger = TheLedger();
  const std::lock_guard lock(ledger.mutex);
  const std::size_t room = inferd::simt::Room(bytes);
  if (ledger.used[t_device] + room > GetSettings().device_bytes) {
    return Keep(cudaErrorMemoryAllocation);
  }
  void* memory = std::aligned_alloc(inferd::simt::Alignment(bytes), room);
  if (memory == nullptr) {
    return Keep(cudaErrorMemoryAllocation);
  }
  std::memset(memory, 0xFF, room);
#if defined(__SANITIZE_ADDRESS__)
  const std::size_t first = (bytes + 7) / 8 * 8;
  __asan_poison_memory_region(static_cast<char*>(memory) + first, room - first);
#endif
  ledger.used[t_device] += room;
  ledger.allocations[reinterpret_cast<std::uintptr_t>(memory)] = {bytes, t_device};
  *pointer = memory;
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  if (const cudaError_t error = RefuseInCapture(); error != cudaSuccess) {
    return error;
  }
  inferd::simt::FinishIdleStreams();
  if (pointer == nullptr) {
    return cudaSuccess;
  }
  auto& ledger = TheLedger();
  const std::lock_guard lock(ledger.mutex);
  const auto found = ledger.allocations.find(reinterpret_cast<std::uintptr_t>(pointer));
  if (found == ledger.allocations.end()) {
    return Keep(cudaErrorInvalidValue);
  }
  const std::size_t room = inferd::simt::Room(found->second.bytes);
  ledger.used[found->second.device] -= room;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(pointer, room);
#endif
  ledger.allocations.erase(found);
  inferd::simt::Unshare(pointer);
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  *pointer = nullptr;
  if (const cudaError_t error = RefuseInCapture(); error != cudaSuccess) {
    return error;
  }
  *pointer = std::aligned_alloc(256, (std::max<std::size_t>(bytes, 1) + 255) / 256 * 256);
  return *pointer != nullptr ? cudaHostRegister(*pointer, bytes, cudaHostRegisterDefault)
                             : Keep(cudaErrorMemoryAllocation);
}
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  return cudaMallocHost(pointer, bytes);
}
cudaError_t cudaFreeHost(void* pointer) {
  const cudaError_t error = cudaHostUnregister(pointer);
  if (error == cudaSuccess) {
    std::free(pointer);
  }
  return error;
}
cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned) {
  auto& ledger = TheLedger();
  const std::lock_guard lock(ledger.mutex);
  ledger.pinned[reinterpret_cast<std::uintptr_t>(pointer)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* pointer) {
  if (const cudaError_t error = RefuseInCapture(); error != cudaSuccess) {
    return error;
  }
  auto& ledger = TheLedger();
  const std::lock_guard lock(ledger.mutex);
  return ledger.pinned.erase(reinterpret_cast<std::uintptr_t>(pointer)) > 0 || pointer == nullptr
             ? cudaSuccess
             : Keep(cudaErrorInvalidValue);
}
