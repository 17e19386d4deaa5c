// SPDX-License-Identifier: Apache-2.0
#include "kernels/rows/rows_ref.h"

#include <algorithm>
#include <cmath>

namespace inferd::kernels {
namespace {

// Sums 32 lanes in the order of the vector kernels: two registers of 16, then halves onto halves.
float SumLanes(float (&lane)[32]) {
  for (int width = 16; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      lane[i] += lane[i + width];
    }
  }
  return lane[0];
}

double GateValue(Gate kind, double a) {
  switch (kind) {
    case Gate::kSilu:
      return a / (1 + std::exp(-a));
    case Gate::kGeluTanh:
      return 0.5 * a * (1 + std::tanh(0.7978845608028654 * (a + 0.044715 * a * a * a)));
    case Gate::kGelu:
      return 0.5 * a * (1 + std::erf(a * 0.7071067811865476));
  }
  return a;
}

}  // namespace

void QuantizeScalar(const float* x, std::int64_t k, ActBlock* out) {
  for (std::int64_t start = 0; start < k; start += 32, ++out) {
    const int count = static_cast<int>(std::min<std::int64_t>(32, k - start));
    float amax = 0;
    for (int i = 0; i < count; ++i) {
      amax = std::max(amax, std::fabs(x[start + i]));
    }
    const float inverse = amax > 0x1p-110f ? 127.0f / amax : 0.0f;
    int sum[2] = {0, 0};
    for (int i = 0; i < 32; ++i) {
      const float scaled = i < count ? x[start + i] * inverse : 0.0f;
      const int q = std::isfinite(scaled) ? static_cast<int>(std::nearbyint(scaled)) : 0;
      out->q[i] = static_cast<std::int8_t>(q);
      sum[i / 16] += q;
    }
    out->d = amax * (1.0f / 127.0f);
    out->s = -out->d * static_cast<float>(sum[0] + sum[1]);
    out->n = -128 * (sum[0] + sum[1]);
    out->n_lo = -128 * sum[0];
  }
}

void RmsNormScalar(const float* x, const float* weight, float eps, std::int64_t k, float* y) {
  float lane[32] = {};
  for (std::int64_t i = 0; i < k; ++i) {
    lane[i % 32] = std::fma(x[i], x[i], lane[i % 32]);
  }
  const float inverse = 1.0f / std::sqrt(SumLanes(lane) / static_cast<float>(k) + eps);
  for (std::int64_t i = 0; i < k; ++i) {
    y[i] = weight != nullptr ? x[i] * inverse * weight[i] : x[i] * inverse;
  }
}

void GateMulScalar(Gate kind, const float* gate, const float* up, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = static_cast<float>(GateValue(kind, gate[i])) * up[i];
  }
}

void AddScalar(float* x, const float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    x[i] += y[i];
  }
}

void AxpyScalar(float scale, const float* x, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) {
    y[i] = std::fma(scale, x[i], y[i]);
  }
}

}  // namespace inferd::kernels
