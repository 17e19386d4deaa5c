// SPDX-License-Identifier: Apache-2.0
// Device memory that another process opens. What is exported keeps its address: its pages become
// those of a file without a name, which the other process finds below /proc and which ends with the
// last of its mappings.
#include "kernels/simt/runtime_api.h"
#include "kernels/simt/runtime_state.h"
#include "kernels/simt/runtime_streams.h"
#include "kernels/simt/settings.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

namespace inferd::simt {
namespace {

// What a handle holds.
struct Exported {
  int process = 0;
  int file = -1;
  std::size_t bytes = 0;
};
static_assert(sizeof(Exported) <= sizeof(cudaIpcMemHandle_t));

struct Shared {
  std::mutex mutex;
  std::map<void*, Exported> exported;   // of this process
  std::map<void*, std::size_t> opened;  // of others; bytes
};

Shared& TheShared() {
  static Shared shared;
  return shared;
}

std::size_t WholePages(std::size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// The pages at `pointer` become a file's, with the `bytes` they hold. -1: there is no such file to
// be had.
int MovePagesIntoFile(void* pointer, std::size_t bytes) {
  const std::size_t room = WholePages(bytes);
  const int file = ::memfd_create("cuda-emu", MFD_CLOEXEC);
  if (file < 0) {
    return -1;
  }
  if (::ftruncate(file, static_cast<off_t>(room)) == 0 &&
      ::pwrite(file, pointer, bytes, 0) == static_cast<ssize_t>(bytes) &&
      ::mmap(pointer, room, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) !=
          MAP_FAILED) {
    return file;
  }
  ::close(file);
  return -1;
}

}  // namespace

void Unshare(void* pointer) {
  Shared& shared = TheShared();
  const std::lock_guard lock(shared.mutex);
  const auto found = shared.exported.find(pointer);
  if (found == shared.exported.end()) {
    return;
  }
  ::close(found->second.file);
  ::mmap(pointer,
         found->second.bytes,
         PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
         -1,
         0);
  shared.exported.erase(found);
}

}  // namespace inferd::simt

using inferd::simt::DeviceState;
using inferd::simt::Exported;
using inferd::simt::GetSettings;
using inferd::simt::Keep;
using inferd::simt::TheShared;

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  if (const cudaError_t error = inferd::simt::RefuseInCapture(); error != cudaSuccess) {
    return error;
  }
  if (!GetSettings().ipc) {
    return Keep(cudaErrorNotSupported);
  }
  const std::size_t bytes = inferd::simt::AllocationAt(pointer);
  if (bytes < inferd::simt::kPageBytes) {  // smaller ones share their pages
    return Keep(cudaErrorInvalidValue);
  }
  auto& shared = TheShared();
  const std::lock_guard lock(shared.mutex);
  Exported& exported = shared.exported[pointer];
  if (exported.file < 0) {
    exported.bytes = inferd::simt::WholePages(bytes);
    exported.process = static_cast<int>(::getpid());
    exported.file = inferd::simt::MovePagesIntoFile(pointer, bytes);
    if (exported.file < 0) {
      shared.exported.erase(pointer);
      return Keep(cudaErrorNotSupported);
    }
  }
  *handle = {};
  std::memcpy(handle->reserved, &exported, sizeof(exported));
  return DeviceState();
}

cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned flags) {
  *pointer = nullptr;
  if (const cudaError_t error = inferd::simt::RefuseInCapture(); error != cudaSuccess) {
    return error;
  }
  Exported exported;
  std::memcpy(&exported, handle.reserved, sizeof(exported));
  if (flags != cudaIpcMemLazyEnablePeerAccess) {
    return Keep(cudaErrorInvalidValue);
  }
  if (exported.process == static_cast<int>(::getpid())) {
    return Keep(cudaErrorDeviceUninitialized);  // as the driver refuses what is the process's own
  }
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", exported.process, exported.file);
  const int file = ::open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) {
    return Keep(cudaErrorInvalidResourceHandle);
  }
  void* const memory = ::mmap(nullptr, exported.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) {
    return Keep(cudaErrorMemoryAllocation);
  }
  auto& shared = TheShared();
  const std::lock_guard lock(shared.mutex);
  shared.opened[memory] = exported.bytes;
  *pointer = memory;
  return DeviceState();
}

cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  if (const cudaError_t error = inferd::simt::RefuseInCapture(); error != cudaSuccess) {
    return error;
  }
  auto& shared = TheShared();
  const std::lock_guard lock(shared.mutex);
  const auto found = shared.opened.find(pointer);
  if (found == shared.opened.end()) {
    return Keep(cudaErrorInvalidValue);
  }
  ::munmap(pointer, found->second);
  shared.opened.erase(found);
  return DeviceState();
}
