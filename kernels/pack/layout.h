// SPDX-License-Identifier: Apache-2.0
// The packed weight layout, one for GEMV, small batches and GEMM.
//
// A panel is 32 output rows over the whole of k, one sequential stream; panels follow one another.
// Rows are padded to 32 with zero scales. Inside a panel, blocks of 32 k follow one another; each
// holds its scales and then its quants, all whole cache lines. Some forms have a header ahead of
// every 256 k (8 blocks).
//
//   form           header     scales, 32 rows            quants, 32 rows x 32 k        block
//   kQ8            -          d (half)                   1024 B bytes                  1088 B
//   kQ5            -          d (half)                   512 B nibbles, 128 B one-bit  704 B
//   kQ4            -          d (half)                   512 B nibbles                 576 B
//   kQ4K           d, dmin    sc, m (bytes)              512 B nibbles                 576 B
//   kQ5K           d, dmin    sc, m (bytes)              512 B nibbles, 128 B one-bit  704 B
//   kQ6K           d          sc k < 16, k >= 16 (int8)  512 B nibbles, 256 B two-bit  832 B
//   kByteScale     -          d (float)                  1024 B bytes                  1152 B
//   kByteScaleMin  -          d, min (float)             1024 B bytes                  1280 B
//   kByteTwo       -          d k < 16, d k >= 16        1024 B bytes                  1280 B
//   kByteTwoMin    -          d, d, min, min             1024 B bytes                  1536 B
//
// kBf16: 128 B per 32 rows x 2 k. kF32: 128 B per 32 rows x 1 k. kF16: 64 B per 32 rows x 1 k.
//
// Bytes: group g (k = 4g .. 4g+3) is 128 B = [brick 0: rows 0-15][brick 1: rows 16-31], each row
// its 4 consecutive k: the operand of one vpdpbusd. Nibbles: line (p, brick), p = 0..3, holds group
// p low and group p+4 high. One-bit plane: line (brick), bit g belongs to group g. Two-bit plane:
// line (h, brick), bits 2i+1..2i belong to group 4h+i. In planes every weight is split as [top four
// bits: nibble][rest: plane].
//
// Quants of symmetric forms are unsigned and top aligned when they reach the multiplier: u = (q <<
// shift) with zero point 128, so that one activation constant, -128 * sum, starts every accumulator
// and 2^-shift is applied once at the end. Forms with mins have zero point 0 and are low aligned.
#pragma once

#include "kernels/types.h"

#include <cstddef>
#include <cstdint>

namespace inferd::kernels {

enum class PackForm : std::uint8_t {
  kQ8,
  kQ5,
  kQ4,
  kQ4K,
  kQ5K,
  kQ6K,
  kByteScale,
  kByteScaleMin,
  kByteTwo,
  kByteTwoMin,
  kBf16,
  kF32,
  kF16,
};

/// How a block of 32 k carries its scales: one, one and a min, two halves, two halves with mins.
enum class ScaleMode : std::uint8_t { kOne, kOneMin, kTwo, kTwoMin };

struct FormLayout {
  int super_k;       // k per super block (32 when there is none)
  int super_header;  // bytes ahead of the blocks of a super block
  int block;         // bytes per 32 rows x 32 k
  int block_header;  // bytes of scales ahead of the quants
  int shift;         // quants are q << shift
  ScaleMode mode;
};

/// Of the block-quantised forms.
static constexpr inline FormLayout LayoutOf(PackForm form) {
  switch (form) {
    case PackForm::kQ8:
      return {32, 0, 1088, 64, 0, ScaleMode::kOne};
    case PackForm::kQ5:
      return {32, 0, 704, 64, 3, ScaleMode::kOne};
    case PackForm::kQ4:
      return {32, 0, 576, 64, 4, ScaleMode::kOne};
    case PackForm::kQ4K:
      return {256, 128, 576, 64, 0, ScaleMode::kOneMin};
    case PackForm::kQ5K:
      return {256, 128, 704, 64, 0, ScaleMode::kOneMin};
    case PackForm::kQ6K:
      return {256, 64, 832, 64, 2, ScaleMode::kTwo};
    case PackForm::kByteScale:
      return {32, 0, 1152, 128, 0, ScaleMode::kOne};
    case PackForm::kByteScaleMin:
      return {32, 0, 1280, 256, 0, ScaleMode::kOneMin};
    case PackForm::kByteTwo:
      return {32, 0, 1280, 256, 0, ScaleMode::kTwo};
    case PackForm::kByteTwoMin:
      return {32, 0, 1536, 512, 0, ScaleMode::kTwoMin};
    default:
      return {32, 0, 0, 0, 0, ScaleMode::kOne};
  }
}

static constexpr inline bool IsInt8Form(PackForm form) { return form < PackForm::kBf16; }

static constexpr inline std::size_t PanelBytes(PackForm form, std::int64_t k) {
  switch (form) {
    case PackForm::kBf16:
      return static_cast<std::size_t>((k + 1) / 2) * 128;
    case PackForm::kF32:
      return static_cast<std::size_t>(k) * 128;
    case PackForm::kF16:
      return static_cast<std::size_t>(k) * 64;
    default: {
      const FormLayout l = LayoutOf(form);
      return static_cast<std::size_t>(k / l.super_k) *
             static_cast<std::size_t>(l.super_header + l.super_k / 32 * l.block);
    }
  }
}

static constexpr inline std::int64_t NumPanels(std::int64_t n) {
  return (n + kPanelRows - 1) / kPanelRows;
}

}  // namespace inferd::kernels
