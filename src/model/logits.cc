// SPDX-License-Identifier: Apache-2.0
#include "model/logits.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace inferd::model {
namespace {

// Eight values at a time; the compiler lowers this to what the target has.
constexpr std::size_t kLanes = 8;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Ints = std::int32_t __attribute__((vector_size(kLanes * sizeof(std::int32_t))));
// Float partial sums go over to double after this many values.
constexpr std::size_t kBlock = 2048;

Floats Load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

Floats Splat(float x) { return Floats{x, x, x, x, x, x, x, x}; }

// exp(x), x <= 0, relative error below 2e-7; 0 below -87. Cephes' polynomial on [-ln2/2, ln2/2].
Floats Exp(Floats x) {
  const Floats lowest = Splat(-87.0F);
  const Ints tiny = x < lowest;
  x = tiny ? lowest : x;
  const Floats scaled =
      x * 1.44269504F - 0.5F;  // x <= 0, and conversion truncates: rounds to nearest
  const Ints n = __builtin_convertvector(scaled, Ints);
  const Floats whole = __builtin_convertvector(n, Floats);
  const Floats r = x - whole * 0.693359375F - whole * -2.12194440e-4F;
  Floats p = Splat(1.9875691500e-4F);
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const Ints exponent = (n + 127) << 23;
  Floats power;
  std::memcpy(&power, &exponent, sizeof(power));
  return tiny ? Splat(0) : p * power;
}

float SumLanes(Floats v) {
  return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]));
}

// Sum of exp((logit - peak) * inverse_temperature) over a block of at most kBlock values.
float SumBlock(const float* logits, std::size_t count, float peak, float inverse_temperature) {
  Floats sum = Splat(0);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    sum += Exp((Load(logits + i) - peak) * inverse_temperature);
  }
  if (i < count) {
    float rest[kLanes];
    std::fill(rest, rest + kLanes, -std::numeric_limits<float>::max());
    std::memcpy(rest, logits + i, (count - i) * sizeof(float));
    Floats last = Load(rest);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      last[lane] = lane < count - i ? (last[lane] - peak) * inverse_temperature : -100.0F;
    }
    sum += Exp(last);
  }
  return SumLanes(sum);
}

}  // namespace

Peak FindPeak(std::span<const float> logits) {
  Floats best = Splat(-std::numeric_limits<float>::infinity());
  Ints finite = Ints{} == Ints{};
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    const Floats v = Load(logits.data() + i);
    best = v > best ? v : best;
    finite &= (v - v == Splat(0));
  }
  Peak peak;
  float value = -std::numeric_limits<float>::infinity();
  bool all_finite = true;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    value = std::max(value, best[lane]);
    all_finite = all_finite && finite[lane] != 0;
  }
  for (; i < logits.size(); ++i) {
    all_finite = all_finite && std::isfinite(logits[i]);
    value = std::max(value, logits[i]);
  }
  if (!all_finite || logits.empty()) {
    return peak;
  }
  peak.value = value;
  peak.token =
      static_cast<std::int32_t>(std::find(logits.begin(), logits.end(), value) - logits.begin());
  return peak;
}

double SumExp(std::span<const float> logits, float peak, float inverse_temperature) {
  double sum = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::size_t count = std::min(kBlock, logits.size() - begin);
    sum += static_cast<double>(SumBlock(logits.data() + begin, count, peak, inverse_temperature));
  }
  return sum;
}

float ExpOf(float x) { return Exp(Splat(x))[0]; }

void Collect(std::span<const float> logits,
             float peak,
             float inverse_temperature,
             float cutoff,
             std::vector<Candidate>& out) {
  out.clear();
  const auto add = [&](std::size_t i) {
    const float z = (logits[i] - peak) * inverse_temperature;
    if (z >= cutoff) {
      out.push_back({z, static_cast<std::int32_t>(i)});
    }
  };
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    const Ints above = (Load(logits.data() + i) - peak) * inverse_temperature >= Splat(cutoff);
    std::int64_t any[kLanes / 2];
    std::memcpy(any, &above, sizeof(above));
    if ((any[0] | any[1] | any[2] | any[3]) != 0) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        add(i + lane);
      }
    }
  }
  for (; i < logits.size(); ++i) {
    add(i);
  }
}

std::int32_t TokenAtMass(std::span<const float> logits,
                         float peak,
                         float inverse_temperature,
                         double target) {
  double before = 0;
  std::int32_t last = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::size_t count = std::min(kBlock, logits.size() - begin);
    const double mass =
        static_cast<double>(SumBlock(logits.data() + begin, count, peak, inverse_temperature));
    const bool is_last = begin + count == logits.size();
    if (before + mass <= target && !is_last) {
      before += mass;
      continue;
    }
    double sum = before;
    for (std::size_t i = begin; i < begin + count; ++i) {
      const float p = ExpOf((logits[i] - peak) * inverse_temperature);
      if (p > 0) {
        last = static_cast<std::int32_t>(i);
        sum += static_cast<double>(p);
        if (sum > target) {
          return last;
        }
      }
    }
    before += mass;
  }
  return last;
}

std::int32_t RankOf(std::span<const float> logits, std::int32_t token) {
  const float value = logits[static_cast<std::size_t>(token)];
  std::int32_t rank = 1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    rank += static_cast<std::int32_t>(logits[i] > value) +
            static_cast<std::int32_t>(logits[i] == value && i < static_cast<std::size_t>(token));
  }
  return rank;
}

std::vector<spec::TokenLogprob> BestTokens(std::span<const float> logits,
                                           std::int32_t n,
                                           double log_sum) {
  const auto keep = static_cast<std::size_t>(
      std::clamp<std::int64_t>(n, 0, static_cast<std::int64_t>(logits.size())));
  std::vector<Candidate> best;  // a heap with the worst kept one in front
  best.reserve(keep + 1);
  for (std::size_t i = 0; i < logits.size() && keep > 0; ++i) {
    if (best.size() == keep && !(logits[i] > best.front().z)) {
      continue;
    }
    if (best.size() == keep) {
      std::pop_heap(best.begin(), best.end());
      best.pop_back();
    }
    best.push_back({logits[i], static_cast<std::int32_t>(i)});
    std::push_heap(best.begin(), best.end());
  }
  std::sort_heap(best.begin(), best.end());
  std::vector<spec::TokenLogprob> result;
  result.reserve(best.size());
  for (const Candidate& candidate : best) {
    result.push_back(
        {candidate.token, static_cast<float>(static_cast<double>(candidate.z) - log_sum)});
  }
  return result;
}

}  // namespace inferd::model
