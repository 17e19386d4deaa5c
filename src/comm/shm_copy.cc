// SPDX-License-Identifier: Apache-2.0
#include "comm/shm_copy.h"

#include "comm/arguments.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <cstdint>

namespace inferd::comm {

#if defined(__x86_64__)

void CopyForOthers(std::byte* to, const std::byte* from, std::size_t bytes) {
  // Shorter messages are sooner there through the caches: measured with tests/bench/comm_bench.
  constexpr std::size_t kFewBytes = 2048;
  constexpr std::size_t kVector = sizeof(__m128i);
  if (bytes < kFewBytes) {
    return CopyBytes(to, from, bytes);
  }
  const std::size_t head = (kVector - reinterpret_cast<std::uintptr_t>(to) % kVector) % kVector;
  CopyBytes(to, from, head);
  std::size_t done = head;
  for (; done + kVector <= bytes; done += kVector) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + done),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done)));
  }
  _mm_sfence();
  CopyBytes(to + done, from + done, bytes - done);
}

#else

void CopyForOthers(std::byte* to, const std::byte* from, std::size_t bytes) {
  CopyBytes(to, from, bytes);
}

#endif

}  // namespace inferd::comm
