// SPDX-License-Identifier: Apache-2.0
// y = sum over seen tokens t of softmax(scale q.c[t]) c[t][0..kv_rank), one row after the other,
// all in double.
#include "kernels/attention/latent.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace inferd::kernels {
namespace {

// Token `slot` of a page as floats; int8 without its scale, which is returned.
float ReadToken(const LatentArgs& args, const std::byte* page, std::int64_t slot, float* out) {
  const std::byte* values = page;
  float scale = 1;
  std::uint16_t half = 0;
  for (std::int64_t i = 0; i < args.dim; ++i) {
    const std::int64_t at = slot * args.dim + i;
    switch (args.format) {
      case KvValue::kF32:
        std::memcpy(out + i, values + at * 4, 4);
        break;
      case KvValue::kF16:
        std::memcpy(&half, values + at * 2, 2);
        out[i] = HalfToFloat(half);
        break;
      case KvValue::kBf16:
        std::memcpy(&half, values + at * 2, 2);
        out[i] = Bf16ToFloat(half);
        break;
      case KvValue::kFp8:
        out[i] = Fp8ToFloat(static_cast<std::uint8_t>(values[at]));
        break;
      case KvValue::kInt8:
        out[i] = static_cast<std::int8_t>(values[at]);
        break;
    }
  }
  if (args.format == KvValue::kInt8) {
    std::memcpy(&scale, page + kPageTokens * args.dim + slot * 4, 4);
  }
  return scale;
}

void AttendRow(const LatentArgs& args, int row) {
  const std::int64_t end = args.pos[row] + 1;
  const auto dim = static_cast<std::size_t>(args.dim);
  std::vector<float> token(dim);
  const auto read = [&](std::int64_t t) {
    const std::byte* page =
        args.base + static_cast<std::size_t>(args.pages[t / kPageTokens]) * args.page_bytes;
    return ReadToken(args, page, t % kPageTokens, token.data());
  };
  std::vector<double> score(static_cast<std::size_t>(end));
  double top = -HUGE_VAL;
  for (std::int64_t t = 0; t < end; ++t) {
    const double scale = read(t);
    double dot = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      dot += static_cast<double>(args.q[row][i]) * token[i];
    }
    score[static_cast<std::size_t>(t)] = dot * scale * args.scale;
    top = std::max(top, score[static_cast<std::size_t>(t)]);
  }
  std::vector<double> y(static_cast<std::size_t>(args.kv_rank));
  double sum = 0;
  for (std::int64_t t = 0; t < end; ++t) {
    const double p = std::exp(score[static_cast<std::size_t>(t)] - top);
    const double scale = read(t);
    sum += p;
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] += p * scale * token[i];
    }
  }
  for (std::size_t i = 0; i < y.size(); ++i) {
    args.y[row][i] = static_cast<float>(y[i] / sum);
  }
}

}  // namespace

void AttentionLatentScalar(const LatentArgs& args) {
  for (int row = 0; row < args.rows; ++row) {
    AttendRow(args, row);
  }
}

}  // namespace inferd::kernels
