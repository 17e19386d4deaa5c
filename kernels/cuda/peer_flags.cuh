// SPDX-License-Identifier: Apache-2.0
// Flags in memory that devices share: what was written before a flag was raised is seen by who has
// seen the flag.
#pragma once

#include "kernels/cuda/shim.cuh"

namespace inferd::kernels::cuda {

#ifdef INFERD_SIMT
inline void RaiseFlag(std::uint32_t* flag, std::uint32_t value) {
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}
inline std::uint32_t ReadFlag(const std::uint32_t* flag) {
  return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
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

/// Until the flag is at least `value` (counted modulo 2^32): true; or *abort is not zero: false.
DEVICE bool AwaitFlag(const std::uint32_t* flag, std::uint32_t value, const std::uint32_t* abort) {
  constexpr unsigned kLooks = 64;  // for each look at *abort, which is over the host's bus
  for (unsigned looks = 1; static_cast<std::int32_t>(ReadFlag(flag) - value) < 0; ++looks) {
    if (looks % kLooks == 0 && abort != nullptr && ReadFlag(abort) != 0) {
      return false;
    }
#ifdef INFERD_SIMT
    simt::Stall();
#endif
  }
  return true;
}

}  // namespace inferd::kernels::cuda
