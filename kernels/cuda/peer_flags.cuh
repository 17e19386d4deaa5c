// SPDX-License-Identifier: Apache-2.0
// Flags in memory that devices share: what was written before a flag was raised is seen by who has
// seen the flag.
#pragma once

#include "kernels/cuda/shim.cuh"

#ifdef INFERD_SIMT
#include <thread>
#endif

namespace inferd::kernels::cuda {

#ifdef INFERD_SIMT
inline void RaiseFlag(std::uint32_t* flag, std::uint32_t value) {
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}
inline std::uint32_t ReadFlag(const std::uint32_t* flag) {
  const std::uint32_t value = __atomic_load_n(flag, __ATOMIC_ACQUIRE);
  std::this_thread::yield();  // the peer may need this core
  return value;
}
#else
DEVICE void RaiseFlag(std::uint32_t* flag, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
DEVICE std::uint32_t ReadFlag(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}
#endif

/// Until the flag is at least `value` (counted modulo 2^32), or *abort is not zero.
DEVICE void AwaitFlag(const std::uint32_t* flag, std::uint32_t value, const std::uint32_t* abort) {
  while (static_cast<std::int32_t>(ReadFlag(flag) - value) < 0) {
    if (abort != nullptr && ReadFlag(abort) != 0) {
      return;
    }
  }
}

}  // namespace inferd::kernels::cuda
