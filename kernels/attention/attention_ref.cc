// SPDX-License-Identifier: Apache-2.0
// y = sum over seen tokens t of softmax(softcap(scale q.k[t]), sink) v[t], one row after the other.
// Softmax in two passes over the scores of one head, all in double.
#include "kernels/attention/attention_ref.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace inferd::kernels {
namespace {

struct Bf16Page {
  static float K(const std::byte* head, std::int64_t, int token, std::int64_t i) {
    std::uint16_t value;
    std::memcpy(&value, head + ((i / 2) * kPageTokens + token) * 4 + (i & 1) * 2, 2);
    return Bf16ToFloat(value);
  }
  static float V(const std::byte* head, std::int64_t head_dim, int token, std::int64_t i) {
    std::uint16_t value;
    std::memcpy(
        &value,
        head + 2 * kPageTokens * head_dim + ((token / 2) * head_dim + i) * 4 + (token & 1) * 2,
        2);
    return Bf16ToFloat(value);
  }
};

struct HalfPage {
  static float K(const std::byte* head, std::int64_t, int token, std::int64_t i) {
    std::uint16_t value;
    std::memcpy(&value, head + (i * kPageTokens + token) * 2, 2);
    return HalfToFloat(value);
  }
  static float V(const std::byte* head, std::int64_t head_dim, int token, std::int64_t i) {
    std::uint16_t value;
    std::memcpy(&value, head + ((kPageTokens + token) * head_dim + i) * 2, 2);
    return HalfToFloat(value);
  }
};

struct FloatPage {
  static float K(const std::byte* head, std::int64_t, int token, std::int64_t i) {
    float value;
    std::memcpy(&value, head + (i * kPageTokens + token) * 4, 4);
    return value;
  }
  static float V(const std::byte* head, std::int64_t head_dim, int token, std::int64_t i) {
    float value;
    std::memcpy(&value, head + (kPageTokens * head_dim + token * head_dim + i) * 4, 4);
    return value;
  }
};

struct Fp8Page {
  static float K(const std::byte* head, std::int64_t, int token, std::int64_t i) {
    return Fp8ToFloat(static_cast<std::uint8_t>(head[i * kPageTokens + token]));
  }
  static float V(const std::byte* head, std::int64_t head_dim, int token, std::int64_t i) {
    return Fp8ToFloat(static_cast<std::uint8_t>(head[(kPageTokens + token) * head_dim + i]));
  }
};

struct Int8Page {
  static double K(const std::byte* head, std::int64_t head_dim, int token, std::int64_t i) {
    return Scale(head, head_dim, token) * static_cast<std::int8_t>(head[i * kPageTokens + token]);
  }
  static double V(const std::byte* head, std::int64_t head_dim, int token, std::int64_t i) {
    return Scale(head, head_dim, kPageTokens + token) *
           static_cast<std::int8_t>(head[(kPageTokens + token) * head_dim + i]);
  }
  static double Scale(const std::byte* head, std::int64_t head_dim, int index) {
    float value;
    std::memcpy(&value, head + 2 * kPageTokens * head_dim + 4 * index, 4);
    return value;
  }
};

template <class Page>
void AttendRow(const AttentionArgs& args, int row) {
  const std::int64_t end = args.pos[row] + 1;
  const std::int64_t begin = args.window > 0 ? std::max<std::int64_t>(0, end - args.window) : 0;
  const auto head = [&](std::int64_t token) {
    return args.base + static_cast<std::size_t>(args.pages[token / kPageTokens]) * args.page_bytes;
  };
  std::vector<double> score(static_cast<std::size_t>(end - begin));
  double top = args.sink != nullptr ? static_cast<double>(args.sink[row]) : -HUGE_VAL;
  for (std::int64_t t = begin; t < end; ++t) {
    double dot = 0;
    for (std::int64_t i = 0; i < args.head_dim; ++i) {
      dot += static_cast<double>(args.q[row][i]) *
             Page::K(head(t), args.head_dim, static_cast<int>(t % kPageTokens), i);
    }
    dot *= args.scale;
    if (args.softcap > 0) {
      dot = args.softcap * std::tanh(dot / args.softcap);
    }
    score[static_cast<std::size_t>(t - begin)] = dot;
    top = std::max(top, dot);
  }
  double sum = args.sink != nullptr ? std::exp(args.sink[row] - top) : 0;
  for (double& s : score) {
    s = std::exp(s - top);
    sum += s;
  }
  std::vector<double> y(static_cast<std::size_t>(args.head_dim));
  for (std::int64_t t = begin; t < end; ++t) {
    const double p = score[static_cast<std::size_t>(t - begin)];
    for (std::int64_t i = 0; i < args.head_dim; ++i) {
      y[static_cast<std::size_t>(i)] +=
          p * Page::V(head(t), args.head_dim, static_cast<int>(t % kPageTokens), i);
    }
  }
  for (std::int64_t i = 0; i < args.head_dim; ++i) {
    args.y[row][i] = static_cast<float>(y[static_cast<std::size_t>(i)] / sum);
  }
}

template <class Page>
void Attend(const AttentionArgs& args) {
  for (int row = 0; row < args.rows; ++row) {
    AttendRow<Page>(args, row);
  }
}

}  // namespace

void AttentionBf16Scalar(const AttentionArgs& args) { Attend<Bf16Page>(args); }

void AttentionHalfScalar(const AttentionArgs& args) { Attend<HalfPage>(args); }

void AttentionFloatScalar(const AttentionArgs& args) { Attend<FloatPage>(args); }

void AttentionFp8Scalar(const AttentionArgs& args) { Attend<Fp8Page>(args); }

void AttentionInt8Scalar(const AttentionArgs& args) { Attend<Int8Page>(args); }

}  // namespace inferd::kernels
