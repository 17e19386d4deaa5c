// SPDX-License-Identifier: Apache-2.0
#include "model/logit_passes.h"

#include <cmath>
#include <cstring>
#include <limits>

#define INFERD_ALWAYS_INLINE inline __attribute__((always_inline))

namespace inferd::model {
namespace {

constexpr std::size_t kLanes = 8;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Ints = std::int32_t __attribute__((vector_size(kLanes * sizeof(std::int32_t))));

INFERD_ALWAYS_INLINE Floats Load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// exp(x), x <= 0, relative error below 3e-7; 0 below -87. Cephes' polynomial on [-ln2/2, ln2/2].
INFERD_ALWAYS_INLINE Floats Exp(Floats x) {
  const Floats zero = {};
  const Floats lowest = zero - 87.0F;
  const Ints tiny = x < lowest;
  x = tiny ? lowest : x;
  // x <= 0 and conversion truncates, so this rounds to the nearest power.
  const Ints n = __builtin_convertvector(x * 1.44269504F - 0.5F, Ints);
  const Floats whole = __builtin_convertvector(n, Floats);
  const Floats r = x - whole * 0.693359375F - whole * -2.12194440e-4F;
  Floats p = zero + 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const Ints exponent = (n + 127) << 23;
  Floats power;
  std::memcpy(&power, &exponent, sizeof(power));
  return tiny ? zero : p * power;
}

INFERD_ALWAYS_INLINE bool PeakBody(const float* logits, std::size_t count, float* largest) {
  float value = -std::numeric_limits<float>::infinity();
  bool finite = true;
  std::size_t i = 0;
  if (count >= kLanes) {
    Floats best = Load(logits);
    Ints bad = {};
    for (; i + kLanes <= count; i += kLanes) {
      const Floats v = Load(logits + i);
      best = v > best ? v : best;
      bad |= (v - v != Floats{});
    }
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      value = best[lane] > value ? best[lane] : value;
      finite = finite && bad[lane] == 0;
    }
  }
  for (; i < count; ++i) {
    finite = finite && std::isfinite(logits[i]);
    value = logits[i] > value ? logits[i] : value;
  }
  *largest = value;
  return finite;
}

INFERD_ALWAYS_INLINE float SumExpBody(const float* logits,
                                      std::size_t count,
                                      float peak,
                                      float inverse_temperature) {
  Floats sum = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    sum += Exp((Load(logits + i) - peak) * inverse_temperature);
  }
  if (i < count) {
    Floats last = Floats{} - 100.0F;  // its exp is 0
    for (std::size_t lane = 0; lane < count - i; ++lane) {
      last[lane] = (logits[i + lane] - peak) * inverse_temperature;
    }
    sum += Exp(last);
  }
  float total = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    total += sum[lane];
  }
  return total;
}

INFERD_ALWAYS_INLINE std::size_t NextAtLeastBody(const float* logits,
                                                 std::size_t begin,
                                                 std::size_t count,
                                                 float peak,
                                                 float inverse_temperature,
                                                 float cutoff) {
  std::size_t i = begin;
  for (; i + kLanes <= count; i += kLanes) {
    const Ints reached = (Load(logits + i) - peak) * inverse_temperature >= Floats{} + cutoff;
    std::int64_t words[kLanes / 2];
    std::memcpy(words, &reached, sizeof(words));
    std::int64_t any = 0;
    for (const std::int64_t word : words) {
      any |= word;
    }
    if (any != 0) {
      break;
    }
  }
  for (; i < count; ++i) {
    if ((logits[i] - peak) * inverse_temperature >= cutoff) {
      return i;
    }
  }
  return count;
}

INFERD_ALWAYS_INLINE void CountBody(
    const float* logits, std::size_t count, float value, std::int64_t* above, std::int64_t* equal) {
  Ints more = {};
  Ints same = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats v = Load(logits + i);
    more -= v > Floats{} + value;
    same -= v == Floats{} + value;
  }
  *above = 0;
  *equal = 0;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    *above += more[lane];
    *equal += same[lane];
  }
  for (; i < count; ++i) {
    *above += logits[i] > value ? 1 : 0;
    *equal += logits[i] == value ? 1 : 0;
  }
}

#define INFERD_DEFINE_PASSES(Name, TARGET)                                                       \
  TARGET bool Peak##Name(const float* l, std::size_t n, float* largest) {                        \
    return PeakBody(l, n, largest);                                                              \
  }                                                                                              \
  TARGET float SumExp##Name(const float* l, std::size_t n, float peak, float scale) {            \
    return SumExpBody(l, n, peak, scale);                                                        \
  }                                                                                              \
  TARGET std::size_t NextAtLeast##Name(                                                          \
      const float* l, std::size_t begin, std::size_t n, float peak, float scale, float cutoff) { \
    return NextAtLeastBody(l, begin, n, peak, scale, cutoff);                                    \
  }                                                                                              \
  TARGET void Count##Name(                                                                       \
      const float* l, std::size_t n, float value, std::int64_t* above, std::int64_t* equal) {    \
    CountBody(l, n, value, above, equal);                                                        \
  }                                                                                              \
  TARGET float Exp##Name(float x) { return Exp(Floats{} + x)[0]; }                               \
  constexpr LogitPasses k##Name = {                                                              \
      Peak##Name, SumExp##Name, NextAtLeast##Name, Count##Name, Exp##Name};

INFERD_DEFINE_PASSES(Plain, )
#if defined(__x86_64__)
INFERD_DEFINE_PASSES(Avx2, __attribute__((target("avx2"))))
INFERD_DEFINE_PASSES(Avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))
#endif
#undef INFERD_DEFINE_PASSES

}  // namespace

std::size_t AllLogitPasses(const LogitPasses* out[3]) {
  std::size_t count = 0;
  out[count++] = &kPlain;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    out[count++] = &kAvx2;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    out[count++] = &kAvx512;
  }
#endif
  return count;
}

const LogitPasses& ChosenLogitPasses() {
  static const LogitPasses* const chosen = [] {
    const LogitPasses* all[3];
    return all[AllLogitPasses(all) - 1];
  }();
  return *chosen;
}

}  // namespace inferd::model
