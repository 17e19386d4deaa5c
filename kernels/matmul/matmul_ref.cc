// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul/matmul_ref.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace inferd::kernels {
namespace {

// 32 rows x 32 k of a panel, decoded: shifted quants and scales as the fast kernels see them.
struct Decoded {
  std::uint8_t u[kPanelRows][32];
  float scale[2][kPanelRows];
  float min[2][kPanelRows];
};

std::uint16_t Load16(const std::uint8_t* p) {
  std::uint16_t value;
  std::memcpy(&value, p, 2);
  return value;
}
float HalfAt(const std::uint8_t* p, int row) { return HalfToFloat(Load16(p + 2 * row)); }
float FloatAt(const std::uint8_t* p, int row) {
  float value;
  std::memcpy(&value, p + 4 * row, 4);
  return value;
}
// Weight [row, k] of a kBf16, kF32 or kF16 panel.
float FloatWeight(PackForm form, const std::uint8_t* panel, std::int64_t k, int row) {
  switch (form) {
    case PackForm::kBf16:
      return Bf16ToFloat(Load16(panel + k / 2 * 128 + 4 * row + k % 2 * 2));
    case PackForm::kF32:
      return FloatAt(panel + k * 128, row);
    default:
      return HalfAt(panel + k * 64, row);
  }
}

// Quant i of a row from the planes at q.
std::uint8_t QuantAt(PackForm form, const std::uint8_t* q, int row, int i) {
  const int g = i / 4;
  const int lane = row * 4 + i % 4;  // within the 128 bytes of both bricks
  const auto nibble = [&] { return (q[(g & 3) * 128 + lane] >> (g < 4 ? 0 : 4)) & 15; };
  const auto one_bit = [&] { return (q[512 + lane] >> g) & 1; };
  switch (form) {
    case PackForm::kQ4K:
      return static_cast<std::uint8_t>(nibble());
    case PackForm::kQ5K:
      return static_cast<std::uint8_t>(nibble() << 1 | one_bit());
    case PackForm::kQ4:
      return static_cast<std::uint8_t>(nibble() << 4);
    case PackForm::kQ5:
      return static_cast<std::uint8_t>(nibble() << 4 | one_bit() << 3);
    case PackForm::kQ6K: {
      const int two_bits = (q[512 + (g / 4) * 128 + lane] >> (2 * (g & 3))) & 3;
      return static_cast<std::uint8_t>(nibble() << 4 | two_bits << 2);
    }
    default:
      return q[g * 128 + lane];
  }
}

void DecodeScales(PackForm form,
                  const std::uint8_t* head,
                  const std::uint8_t* block,
                  Decoded* out) {
  for (int r = 0; r < kPanelRows; ++r) {
    switch (form) {
      case PackForm::kQ4K:
      case PackForm::kQ5K:
        out->scale[0][r] = HalfAt(head, r) * static_cast<float>(block[r]);
        out->min[0][r] = HalfAt(head + 64, r) * static_cast<float>(block[32 + r]);
        break;
      case PackForm::kQ6K:
        out->scale[0][r] = HalfAt(head, r) * static_cast<float>(static_cast<std::int8_t>(block[r]));
        out->scale[1][r] =
            HalfAt(head, r) * static_cast<float>(static_cast<std::int8_t>(block[32 + r]));
        break;
      case PackForm::kByteScaleMin:
        out->scale[0][r] = FloatAt(block, r);
        out->min[0][r] = FloatAt(block + 128, r);
        break;
      case PackForm::kByteTwoMin:
        out->min[0][r] = FloatAt(block + 256, r);
        out->min[1][r] = FloatAt(block + 384, r);
        [[fallthrough]];
      case PackForm::kByteTwo:
        out->scale[1][r] = FloatAt(block + 128, r);
        [[fallthrough]];
      case PackForm::kByteScale:
        out->scale[0][r] = FloatAt(block, r);
        break;
      default:
        out->scale[0][r] = HalfAt(block, r);
    }
  }
}

int Dot(const std::uint8_t* u, const std::int8_t* q, int from, int to) {
  int sum = 0;
  for (int i = from; i < to; ++i) {
    sum += u[i] * q[i];
  }
  return sum;
}

// One block of one token against one row: the arithmetic of MatMulArgs.
float BlockStep(ScaleMode mode, const Decoded& w, int row, const ActBlock& a, float f) {
  const std::uint8_t* u = w.u[row];
  switch (mode) {
    case ScaleMode::kOne:
      return std::fma(static_cast<float>(a.n + Dot(u, a.q, 0, 32)), w.scale[0][row] * a.d, f);
    case ScaleMode::kOneMin:
      f = std::fma(static_cast<float>(Dot(u, a.q, 0, 32)), w.scale[0][row] * a.d, f);
      return std::fma(w.min[0][row], a.s, f);
    case ScaleMode::kTwo:
      f = std::fma(static_cast<float>(a.n_lo + Dot(u, a.q, 0, 16)), w.scale[0][row] * a.d, f);
      return std::fma(
          static_cast<float>(a.n - a.n_lo + Dot(u, a.q, 16, 32)), w.scale[1][row] * a.d, f);
    case ScaleMode::kTwoMin: {
      const float s_lo = a.d * (static_cast<float>(a.n_lo) * 0x1p-7f);
      const float s_hi = a.d * (static_cast<float>(a.n - a.n_lo) * 0x1p-7f);
      f = std::fma(static_cast<float>(Dot(u, a.q, 0, 16)), w.scale[0][row] * a.d, f);
      f = std::fma(w.min[0][row], s_lo, f);
      f = std::fma(static_cast<float>(Dot(u, a.q, 16, 32)), w.scale[1][row] * a.d, f);
      return std::fma(w.min[1][row], s_hi, f);
    }
  }
  return f;
}

// f[t * 32 + row] of one panel, m tokens from `token`.
void Int8Panel(const MatMulArgs& args,
               const std::uint8_t* panel,
               std::int64_t token,
               std::int64_t m,
               float* f) {
  const FormLayout l = LayoutOf(args.form);
  Decoded w;
  const std::uint8_t* head = panel;
  for (std::int64_t j = 0; j < args.k / 32; ++j) {
    if (j * 32 % l.super_k == 0) {
      head = panel;
      panel += l.super_header;
    }
    DecodeScales(args.form, head, panel, &w);
    for (int r = 0; r < kPanelRows; ++r) {
      for (int i = 0; i < 32; ++i) {
        w.u[r][i] = QuantAt(args.form, panel + l.block_header, r, i);
      }
    }
    for (std::int64_t t = 0; t < m; ++t) {
      const ActBlock& a = args.a_int8[(token + t) * args.ld_int8 + j];
      for (int r = 0; r < kPanelRows; ++r) {
        f[t * kPanelRows + r] = BlockStep(l.mode, w, r, a, f[t * kPanelRows + r]);
      }
    }
    panel += l.block;
  }
  const float out_scale = 1.0f / static_cast<float>(1 << l.shift);
  for (std::int64_t i = 0; i < m * kPanelRows; ++i) {
    f[i] *= out_scale;
  }
}

void FloatPanel(const MatMulArgs& args,
                const std::uint8_t* panel,
                std::int64_t token,
                std::int64_t m,
                float* f) {
  for (std::int64_t i = 0; i < args.k; ++i) {
    for (std::int64_t t = 0; t < m; ++t) {
      const float a = args.a_float[(token + t) * args.ld_float + i];
      for (int r = 0; r < kPanelRows; ++r) {
        float& y = f[t * kPanelRows + r];
        y = std::fma(a, FloatWeight(args.form, panel, i, r), y);
      }
    }
  }
}

}  // namespace

void MatMulScalar(const MatMulArgs& args) {
  float* f = reinterpret_cast<float*>(args.scratch);
  for (std::int64_t token = 0; token < args.m; token += kMatMulRows) {
    const std::int64_t m = std::min<std::int64_t>(kMatMulRows, args.m - token);
    for (std::int64_t p = args.first; p < args.last; ++p) {
      const std::uint8_t* panel = args.panels + static_cast<std::size_t>(p) * args.panel_bytes;
      std::fill_n(f, m * kPanelRows, 0.0f);
      if (IsInt8Form(args.form)) {
        Int8Panel(args, panel, token, m, f);
      } else {
        FloatPanel(args, panel, token, m, f);
      }
      const std::int64_t row0 = p * kPanelRows;
      const std::int64_t valid = std::min<std::int64_t>(kPanelRows, args.n - row0);
      for (std::int64_t t = 0; t < m; ++t) {
        float* y = args.y + (token + t) * args.ldy + row0;
        for (std::int64_t r = 0; r < valid; ++r) {
          const float sum = f[t * kPanelRows + r];
          y[r] = args.bias != nullptr ? sum + args.bias[row0 + r] : sum;
        }
      }
    }
  }
}

}  // namespace inferd::kernels
