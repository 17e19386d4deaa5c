// SPDX-License-Identifier: Apache-2.0
// The order in which a device works, for a library that adds operations of its own to it: comm
// hands NCCL the stream of ops::Device without knowing CUDA.
#pragma once

#include "base/error.h"
#include "inferd/result.h"
#include "tensor/peer_memory.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace inferd::tensor {

/// Looks after a queue while its owner waits for it.
class WaitGuard {
 public:
  virtual ~WaitGuard() = default;
  /// Asked again and again while work is outstanding, from the waiting thread; `waited` since that
  /// wait began. An error ends the wait; the guard has then seen to it that nothing in the queue
  /// waits for a peer any more.
  virtual Result<> Check(std::chrono::nanoseconds waited) = 0;
};

/// Looks a function of a C library up by name; null: it has none.
using FindFunction = std::function<void*(const char* name)>;

/// *function = the one called `name`; kUnavailable: the library, `whose` name the message has, has
/// none.
template <class Function>
Result<> LookUp(const FindFunction& find,
                const std::string& whose,
                const char* name,
                Function* function) {
  *function = reinterpret_cast<Function>(find(name));
  return *function != nullptr ? Result<>() : Unavailable("{} has no function {}", whose, name);
}

/// Owned by the device. One thread: the device's.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;

  /// The cudaStream_t.
  virtual void* stream() const = 0;
  /// The calling thread's CUDA calls go to this device from now on.
  virtual Result<> MakeCurrent() = 0;
  /// "GPU-<uuid>", "MIG-<uuid>" of a slice, "EMU-<n>" of an emulated device.
  virtual const std::string& device_id() const = 0;
  /// The collective library that an emulated device brings along; empty: the host's NCCL serves.
  virtual FindFunction collectives() const = 0;

  /// Puts a mark behind everything given so far. The mark's number, from 1; when very many are
  /// outstanding, that of the newest mark instead.
  virtual std::uint64_t Mark() = 0;
  /// The newest mark that the device has passed; 0: none.
  virtual std::uint64_t Passed() = 0;

  /// Who is asked during every wait of the device, and at its end; null: nobody. It must outlive
  /// its use.
  virtual void SetGuard(WaitGuard* guard) = 0;
  /// How long a wait of the device lasts at most while there is no guard, whose affair that is
  /// else. A device that is not done by then has a little longer to come to rest: the wait fails
  /// with kDeadlineExceeded where it does, else with kInternal, and the device is broken.
  virtual void SetWaitLimit(std::chrono::milliseconds limit) = 0;

  /// What is given becomes part of a recording instead of being done. No marks then.
  virtual bool Recording() const { return false; }
  /// Recordings hold calls of a group that ends: none is replayed from now on.
  virtual void DropRecordings() {}
  /// Null: this device has no memory that peers reach.
  virtual PeerAccess* peers() { return nullptr; }
};

}  // namespace inferd::tensor
