// SPDX-License-Identifier: Apache-2.0
// CUDA's device functions on the emulated device: barriers, warp collectives, atomics, conversions.
// The names are NVIDIA's, so they live in the global namespace.
#pragma once

#include "kernels/simt/engine.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define threadIdx (::inferd::simt::t_fiber->thread_index)
#define blockIdx (::inferd::simt::t_block->index)
#define blockDim (::inferd::simt::t_block->threads)
#define gridDim (::inferd::simt::t_block->grid)

namespace inferd::simt {

template <class T>
struct ShuffleOperand {
  T value;
  T result;
  int source;
};

// A lane outside the mask as source is undefined in CUDA; here it gives NaN bytes.
template <class T>
SIMT_UNTRACED void ShuffleAll(void** operands, std::uint32_t mask) {
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    auto* mine = static_cast<ShuffleOperand<T>*>(operands[__builtin_ctz(rest)]);
    if ((mask >> mine->source & 1) != 0) {
      mine->result = static_cast<ShuffleOperand<T>*>(operands[mine->source])->value;
    } else {
      std::memset(static_cast<void*>(&mine->result), 0xFF, sizeof(T));
    }
  }
}

template <class T>
SIMT_UNTRACED T Shuffle(std::uint32_t mask, T value, int source, const Location& where) {
  ShuffleOperand<T> operand{value, value, source};
  Meet(Meeting::kShuffle, mask, &operand, &ShuffleAll<T>, where, false);
  return operand.result;
}

inline int Lane() { return t_fiber->lane; }

struct BallotOperand {
  int predicate;
  std::uint32_t result;
};

SIMT_UNTRACED inline void BallotAll(void** operands, std::uint32_t mask) {
  std::uint32_t votes = 0;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    votes |= static_cast<BallotOperand*>(operands[lane])->predicate != 0 ? 1U << lane : 0U;
  }
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    static_cast<BallotOperand*>(operands[__builtin_ctz(rest)])->result = votes;
  }
}

}  // namespace inferd::simt

using SimtLocation = std::source_location;

inline void __syncthreads(SimtLocation where = SimtLocation::current()) {
  inferd::simt::BlockBarrier(0, inferd::simt::Vote::kOr, where);
}
inline int __syncthreads_or(int predicate, SimtLocation where = SimtLocation::current()) {
  return inferd::simt::BlockBarrier(predicate, inferd::simt::Vote::kOr, where);
}
inline int __syncthreads_and(int predicate, SimtLocation where = SimtLocation::current()) {
  return inferd::simt::BlockBarrier(predicate, inferd::simt::Vote::kAnd, where);
}
inline int __syncthreads_count(int predicate, SimtLocation where = SimtLocation::current()) {
  return inferd::simt::BlockBarrier(predicate, inferd::simt::Vote::kCount, where);
}
inline void __syncwarp(unsigned mask = ~0U, SimtLocation where = SimtLocation::current()) {
  inferd::simt::Meet(inferd::simt::Meeting::kSyncWarp, mask, nullptr, nullptr, where, true);
}

template <class T>
T __shfl_sync(unsigned mask,
              T value,
              int source,
              int width = 32,
              SimtLocation where = SimtLocation::current()) {
  const int base = inferd::simt::Lane() & ~(width - 1);
  return inferd::simt::Shuffle(mask, value, base | (source & (width - 1)), where);
}
template <class T>
T __shfl_xor_sync(unsigned mask,
                  T value,
                  int bits,
                  int width = 32,
                  SimtLocation where = SimtLocation::current()) {
  const int lane = inferd::simt::Lane();
  const int source = lane ^ bits;
  const bool inside = source < (lane & ~(width - 1)) + width;
  return inferd::simt::Shuffle(mask, value, inside ? source : lane, where);
}
template <class T>
T __shfl_down_sync(unsigned mask,
                   T value,
                   unsigned by,
                   int width = 32,
                   SimtLocation where = SimtLocation::current()) {
  const int lane = inferd::simt::Lane();
  const int step = static_cast<int>(by);
  const bool inside = (lane & (width - 1)) + step < width;
  return inferd::simt::Shuffle(mask, value, inside ? lane + step : lane, where);
}
template <class T>
T __shfl_up_sync(unsigned mask,
                 T value,
                 unsigned by,
                 int width = 32,
                 SimtLocation where = SimtLocation::current()) {
  const int lane = inferd::simt::Lane();
  const int step = static_cast<int>(by);
  const bool inside = (lane & (width - 1)) >= step;
  return inferd::simt::Shuffle(mask, value, inside ? lane - step : lane, where);
}
inline unsigned __ballot_sync(unsigned mask,
                              int predicate,
                              SimtLocation where = SimtLocation::current()) {
  inferd::simt::BallotOperand operand{predicate, 0};
  inferd::simt::Meet(
      inferd::simt::Meeting::kVote, mask, &operand, &inferd::simt::BallotAll, where, false);
  return operand.result;
}
inline int __any_sync(unsigned mask, int predicate, SimtLocation where = SimtLocation::current()) {
  return __ballot_sync(mask, predicate, where) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate, SimtLocation where = SimtLocation::current()) {
  return __ballot_sync(mask, predicate, where) == mask ? 1 : 0;
}

template <class T>
T atomicAdd(T* to, T value) {
  return std::atomic_ref<T>(*to).fetch_add(value, std::memory_order_acq_rel);
}
template <class T>
T atomicMax(T* to, T value) {
  std::atomic_ref<T> target(*to);
  T old = target.load(std::memory_order_relaxed);
  while (old < value && !target.compare_exchange_weak(old, value, std::memory_order_acq_rel)) {
  }
  return old;
}
template <class T>
T atomicCAS(T* to, T expected, T value) {
  std::atomic_ref<T>(*to).compare_exchange_strong(expected, value, std::memory_order_acq_rel);
  return expected;
}
template <class T>
T atomicExch(T* to, T value) {
  return std::atomic_ref<T>(*to).exchange(value, std::memory_order_acq_rel);
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() {}
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }

inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(std::uint64_t{a} * b >> 32);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x != 0 ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T>
T __ldg(const T* p) {
  return *p;
}
using std::max;
using std::min;
