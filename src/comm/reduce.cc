// SPDX-License-Identifier: Apache-2.0
// Explicit vectors, so that the speed does not hang on the optimiser's mood; 256 bits where the CPU
// has AVX2.
#include "comm/reduce.h"

#include <cstring>

namespace inferd::comm {
namespace {

using Float8 = float __attribute__((vector_size(32)));
constexpr std::size_t kLanes = 8;
/// Two vectors at a time hide the latency of the additions.
constexpr std::size_t kStep = 2 * kLanes;

#define INFERD_COMM_INLINE inline __attribute__((always_inline))

/// kRanks == 0: as many as `sources` holds.
template <std::size_t kRanks>
INFERD_COMM_INLINE void SumBody(float* dst, std::span<const float* const> sources, std::size_t n) {
  const std::size_t ranks = kRanks != 0 ? kRanks : sources.size();
  std::size_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    Float8 a;
    Float8 b;
    std::memcpy(&a, sources[0] + i, sizeof a);
    std::memcpy(&b, sources[0] + i + kLanes, sizeof b);
    for (std::size_t r = 1; r < ranks; ++r) {
      Float8 x;
      Float8 y;
      std::memcpy(&x, sources[r] + i, sizeof x);
      std::memcpy(&y, sources[r] + i + kLanes, sizeof y);
      a += x;
      b += y;
    }
    std::memcpy(dst + i, &a, sizeof a);
    std::memcpy(dst + i + kLanes, &b, sizeof b);
  }
  for (; i < n; ++i) {
    float sum = sources[0][i];
    for (std::size_t r = 1; r < ranks; ++r) {
      sum += sources[r][i];
    }
    dst[i] = sum;
  }
}

INFERD_COMM_INLINE void SumAny(float* dst, std::span<const float* const> sources, std::size_t n) {
  switch (sources.size()) {
    case 2:
      return SumBody<2>(dst, sources, n);
    case 4:
      return SumBody<4>(dst, sources, n);
    default:
      return SumBody<0>(dst, sources, n);
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void SumAvx2(float* dst,
                                             std::span<const float* const> sources,
                                             std::size_t n) {
  SumAny(dst, sources, n);
}
#endif

void SumBaseline(float* dst, std::span<const float* const> sources, std::size_t n) {
  SumAny(dst, sources, n);
}

}  // namespace

void SumInRankOrder(float* dst, std::span<const float* const> sources, std::size_t n) {
  if (sources.empty()) {
    return;
  }
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) {
    return SumAvx2(dst, sources, n);
  }
#endif
  SumBaseline(dst, sources, n);
}

}  // namespace inferd::comm
