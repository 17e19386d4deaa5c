// SPDX-License-Identifier: Apache-2.0
// The stored parts of one quantised layer, and how its values are made of them.
#pragma once

#include "base/dtype.h"
#include "store/tensor_source.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace inferd::store {

/// Value [i, j] of the layer [rows, cols] is (q - zero) * scale, with g the group of column j.
struct QuantisedParts {
  enum class Layout : std::uint8_t {
    kGptq,    // q in words [cols / pack, rows] along columns; scales [g, i]; zeros [g, i / pack]
    kAwq,     // q in words [cols, rows / 8] along rows, interleaved; scales [g, i]; zeros alike
    kRows,    // q in words [rows, cols / pack] along columns; scales [i, g]; zeros [i / pack, g]
    kScaled,  // plain FP8 or int8 values; scales [i / scale_rows, j / group_size]; no zeros
    kPlain,   // plain floats [rows, cols], rounded to blocks of `rounded`, or to E4M3 with a scale
              // per row, as they are read; no scales
  };
  Layout layout = Layout::kScaled;
  int bits = 8;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t group_size = 1;  // columns per scale
  std::int64_t scale_rows = 1;  // rows per scale; kScaled only
  bool zero_plus_one = false;
  DType rounded = DType::kQ8_0;  // kPlain only
  bool small_scales = false;     // some would lose bits as an F16; kScaled only
  bool by_token =
      false;  // inputs are to be rounded like the values, a scale per token; kScaled only
  TensorInfo weight;
  TensorInfo scales;
  std::optional<TensorInfo> zeros;        // none: half of the range
  std::optional<TensorInfo> group_index;  // [cols], when the groups are not in order

  /// The type of the rows that are made: GGUF's 4-bit and int8 blocks where the groups allow them
  /// (every product then runs on those bits), else a 16-bit float.
  DType MadeType() const;
  /// Scales along a row.
  std::int64_t num_groups() const { return (cols + group_size - 1) / group_size; }
};

/// Word i of an I32 tensor's bytes.
inline std::int32_t LoadWord(std::span<const std::byte> bytes, std::int64_t i) {
  std::int32_t word = 0;
  std::memcpy(&word, bytes.data() + static_cast<std::size_t>(i) * sizeof(word), sizeof(word));
  return word;
}

}  // namespace inferd::store
