// SPDX-License-Identifier: Apache-2.0
// Rows of a quantised layer, made from its parts as they are read.
#include "base/check.h"
#include "base/float_bits.h"
#include "store/block_rounding.h"
#include "store/quantised.h"
#include "store/quantised_parts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace inferd::store {
namespace {

using Layout = QuantisedParts::Layout;

// AWQ's word holds, from the lowest bits on, the rows 0 2 4 6 1 3 5 7: the place of each row.
constexpr std::array<int, 8> kAwqPlace = {0, 4, 1, 5, 2, 6, 3, 7};

// Of a column that the file puts into a group it has no scale of: refused when the model was
// opened, but a file can change since. Its values are not finite, which loading refuses.
constexpr std::int64_t kNoGroup = -1;

template <class T>
T Load(std::span<const std::byte> bytes, std::int64_t i) {
  T value{};
  std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

class Maker {
 public:
  Maker(const TensorSource& source, const QuantisedParts& parts)
      : parts_(parts),
        num_groups_(parts.group_index ? parts.num_groups() : 0),
        weight_(source.Data(parts.weight)),
        scales_(parts.layout == Layout::kPlain ? std::span<const std::byte>()
                                               : source.Data(parts.scales)),
        zeros_(parts.zeros ? source.Data(*parts.zeros) : std::span<const std::byte>()),
        groups_(parts.group_index ? source.Data(*parts.group_index)
                                  : std::span<const std::byte>()) {}

  std::int64_t GroupOf(std::int64_t j) const {
    if (groups_.empty()) {
      return j / parts_.group_size;
    }
    const std::int64_t g = LoadWord(groups_, j);
    return g >= 0 && g < num_groups_ ? g : kNoGroup;
  }

  float Scale(std::int64_t i, std::int64_t g) const {
    if (g == kNoGroup) {
      return std::numeric_limits<float>::quiet_NaN();
    }
    const std::int64_t ld = parts_.scales.cols();
    const bool by_row = parts_.layout == Layout::kRows || parts_.layout == Layout::kScaled;
    const std::int64_t at = by_row ? i / parts_.scale_rows * ld + g : g * ld + i;
    return PlainToFloat(parts_.scales.dtype, scales_.data() + at * BlockBytes(parts_.scales.dtype));
  }

  int Zero(std::int64_t i, std::int64_t g) const {
    if (!parts_.zeros || g == kNoGroup) {
      return 1 << (parts_.bits - 1);
    }
    const std::int64_t pack = 32 / parts_.bits;
    const std::int64_t ld = parts_.zeros->cols();
    const bool rows = parts_.layout == Layout::kRows;
    const std::int64_t at = rows ? i / pack * ld + g : g * ld + i / pack;
    return Unpack(LoadWord(zeros_, at), i % pack) + (parts_.zero_plus_one ? 1 : 0);
  }

  int Q(std::int64_t i, std::int64_t j) const {
    const std::int64_t pack = 32 / parts_.bits;
    const std::int64_t ld = parts_.weight.cols();
    switch (parts_.layout) {
      case Layout::kGptq:
        return UnpackPlain(LoadWord(weight_, j / pack * ld + i), j % pack);
      case Layout::kAwq:
        return Unpack(LoadWord(weight_, j * ld + i / pack), i % pack);
      case Layout::kRows:
        return UnpackPlain(LoadWord(weight_, i * ld + j / pack), j % pack);
      case Layout::kScaled:
      case Layout::kPlain:
        break;
    }
    return Load<std::int8_t>(weight_, i * ld + j);
  }

  float Value(std::int64_t i, std::int64_t j) const {
    const std::int64_t g = GroupOf(j);
    if (parts_.layout != Layout::kScaled) {
      return static_cast<float>(Q(i, j) - Zero(i, g)) * Scale(i, g);
    }
    const std::int64_t at = i * parts_.cols + j;
    const float stored = parts_.weight.dtype == DType::kI8
                             ? static_cast<float>(Load<std::int8_t>(weight_, at))
                             : F8ToFloat(Load<std::uint8_t>(weight_, at));
    return stored * Scale(i, g);
  }

  float Plain(std::int64_t i, std::int64_t j) const {
    const DType type = parts_.weight.dtype;
    return PlainToFloat(type, weight_.data() + (i * parts_.cols + j) * BlockBytes(type));
  }

  // Of a row that is rounded to E4M3: the largest value becomes the largest code.
  float RoundedScale(std::int64_t i) const {
    float largest = 0;
    for (std::int64_t j = 0; j < parts_.cols; ++j) {
      const float size = std::abs(Plain(i, j));
      largest = std::isfinite(size) ? std::max(largest, size) : INFINITY;
      if (!std::isfinite(size)) {
        break;
      }
    }
    return largest / kF8Largest;
  }

  // Columns [begin, end) of row i: stored E4M3 or int8 values, or plain ones rounded to E4M3.
  std::byte* Codes(std::int64_t i, std::int64_t begin, std::int64_t end, std::byte* out) const {
    if (parts_.layout == Layout::kScaled) {
      const auto row = weight_.subspan(static_cast<std::size_t>(i * parts_.cols + begin),
                                       static_cast<std::size_t>(end - begin));
      return std::copy(row.begin(), row.end(), out);
    }
    const float scale = RoundedScale(i);
    for (std::int64_t j = begin; j < end; ++j) {
      *out++ = static_cast<std::byte>(RoundToF8(scale > 0 ? Plain(i, j) / scale : 0.0F));
    }
    return out;
  }

  // The same with its scale, as BF16.
  std::byte* RoundedBf16(std::int64_t i,
                         std::int64_t begin,
                         std::int64_t end,
                         std::byte* out) const {
    const float scale = RoundedScale(i);
    for (std::int64_t j = begin; j < end; ++j) {
      const std::uint8_t code = RoundToF8(scale > 0 ? Plain(i, j) / scale : 0.0F);
      const std::uint16_t bits = FloatToBf16(F8ToFloat(code) * scale);
      std::memcpy(out, &bits, sizeof(bits));
      out += sizeof(bits);
    }
    return out;
  }

  // The 32 values from column j on, as GGUF's Q4_0, Q4_1 or Q8_0 block.
  std::byte* Block(DType type, std::int64_t i, std::int64_t j, std::byte* out) const {
    if (parts_.layout == Layout::kPlain) {
      return RoundBlock(
          PlainBlock(parts_.weight.dtype, weight_.data(), i * parts_.cols + j), type, out);
    }
    return GroupBlock(type, i, GroupOf(j), out, [&](std::int64_t k) { return Q(i, j + k); });
  }

  // The columns of one block of GroupedColumns.
  std::byte* GroupedBlock(DType type,
                          std::int64_t i,
                          std::int64_t col_begin,
                          const std::int32_t* columns,
                          std::byte* out) const {
    return GroupBlock(type, i, GroupOf(col_begin + columns[0]), out, [&](std::int64_t k) {
      return columns[k] < 0 ? 0 : Q(i, col_begin + columns[k]);
    });
  }

  // A block of group g whose value k is q_of(k).
  template <class QOf>
  std::byte* GroupBlock(
      DType type, std::int64_t i, std::int64_t g, std::byte* out, const QOf& q_of) const {
    const float scale = Scale(i, g);
    const auto put = [&out](std::uint16_t half) {
      std::memcpy(out, &half, sizeof(half));
      out += sizeof(half);
    };
    put(FloatToHalf(scale));
    if (type == DType::kQ4_1) {
      put(FloatToHalf(-static_cast<float>(Zero(i, g)) * scale));
    }
    if (type == DType::kQ8_0) {
      for (std::int64_t k = 0; k < kRoundBlock; ++k) {
        *out++ = static_cast<std::byte>(q_of(k));
      }
      return out;
    }
    for (std::int64_t k = 0; k < kRoundBlock / 2; ++k) {
      *out++ = static_cast<std::byte>(q_of(k) | q_of(k + kRoundBlock / 2) << 4);
    }
    return out;
  }

 private:
  int UnpackPlain(std::int32_t word, std::int64_t place) const {
    const auto shift = static_cast<unsigned>(place * parts_.bits);
    return static_cast<int>((static_cast<std::uint32_t>(word) >> shift) &
                            ((1U << static_cast<unsigned>(parts_.bits)) - 1U));
  }
  int Unpack(std::int32_t word, std::int64_t row) const {
    const bool awq = parts_.layout == Layout::kAwq;
    return UnpackPlain(word, awq ? kAwqPlace[static_cast<std::size_t>(row)] : row);
  }

  const QuantisedParts& parts_;
  const std::int64_t num_groups_;  // of a group_index
  std::span<const std::byte> weight_, scales_, zeros_, groups_;
};

}  // namespace

DType QuantisedParts::MadeType() const {
  if (layout == Layout::kPlain) {
    return rounded;
  }
  if (layout == Layout::kScaled) {
    const bool blocks = group_size % kRoundBlock == 0 && cols % kRoundBlock == 0;
    return blocks && weight.dtype == DType::kI8 && !small_scales ? DType::kQ8_0 : DType::kBF16;
  }
  if (bits != 4 || group_index || group_size % kRoundBlock != 0 || cols % kRoundBlock != 0) {
    return DType::kF16;
  }
  return zeros ? DType::kQ4_1 : DType::kQ4_0;
}

std::vector<std::byte> MakeRows(const TensorSource& source,
                                const TensorInfo& tensor,
                                DType type,
                                std::int64_t row_begin,
                                std::int64_t row_end,
                                std::int64_t col_begin,
                                std::int64_t col_end) {
  INFERD_CHECK(tensor.parts != nullptr);
  const std::int64_t block = BlockElements(type);
  INFERD_CHECK(col_begin % block == 0 && col_end % block == 0);
  const Maker maker(source, *tensor.parts);
  std::vector<std::byte> made(static_cast<std::size_t>(
      (row_end - row_begin) * ((col_end - col_begin) / block * BlockBytes(type))));
  std::byte* out = made.data();
  const bool rounds_to_f8 =
      tensor.parts->layout == Layout::kPlain && tensor.parts->rounded == DType::kF8E4M3;
  for (std::int64_t i = row_begin; i < row_end; ++i) {
    const bool codes = type == DType::kF8E4M3 || type == DType::kI8;
    if (codes || rounds_to_f8) {
      out = codes ? maker.Codes(i, col_begin, col_end, out)
                  : maker.RoundedBf16(i, col_begin, col_end, out);
      continue;
    }
    for (std::int64_t j = col_begin; j < col_end; j += block) {
      if (block > 1) {
        out = maker.Block(type, i, j, out);
        continue;
      }
      const float value = maker.Value(i, j);
      const std::uint16_t bits = type == DType::kBF16 ? FloatToBf16(value) : FloatToHalf(value);
      std::memcpy(out, &bits, sizeof(bits));
      out += sizeof(bits);
    }
  }
  return made;
}

DType GroupedType(const TensorInfo& tensor) {
  return tensor.parts->zeros ? DType::kQ4_1 : DType::kQ4_0;
}

std::optional<std::int64_t> GroupedWidth(const TensorSource& source,
                                         const TensorInfo& tensor,
                                         std::int64_t col_begin,
                                         std::int64_t col_end) {
  INFERD_CHECK(tensor.parts != nullptr);
  const QuantisedParts& parts = *tensor.parts;
  if (parts.bits != 4 || !parts.group_index) {
    return std::nullopt;
  }
  const auto index = source.Data(*parts.group_index);
  const std::int64_t num_groups = parts.num_groups();
  std::vector<std::int64_t> counts(static_cast<std::size_t>(num_groups));
  for (std::int64_t j = col_begin; j < col_end; ++j) {
    const std::int64_t group = LoadWord(index, j);
    if (group < 0 || group >= num_groups) {
      return std::nullopt;
    }
    ++counts[static_cast<std::size_t>(group)];
  }
  std::int64_t width = 0;
  for (const std::int64_t count : counts) {
    width += (count + kRoundBlock - 1) / kRoundBlock * kRoundBlock;
  }
  return width <= 2 * (col_end - col_begin) ? std::optional(width) : std::nullopt;
}

std::optional<GroupedColumns> GroupColumns(const TensorSource& source,
                                           const TensorInfo& tensor,
                                           std::int64_t col_begin,
                                           std::int64_t col_end) {
  if (!GroupedWidth(source, tensor, col_begin, col_end)) {
    return std::nullopt;
  }
  const QuantisedParts& parts = *tensor.parts;
  const Maker maker(source, parts);
  std::vector<std::int32_t> by_group(static_cast<std::size_t>(col_end - col_begin));
  std::iota(by_group.begin(), by_group.end(), 0);
  const auto group_of = [&](std::int32_t column) { return maker.GroupOf(col_begin + column); };
  std::stable_sort(by_group.begin(), by_group.end(), [&](std::int32_t a, std::int32_t b) {
    return group_of(a) < group_of(b);
  });
  GroupedColumns grouped;
  grouped.type = GroupedType(tensor);
  std::int64_t group = -1;
  const auto fill_block = [&grouped] {
    grouped.columns.resize((grouped.columns.size() + kRoundBlock - 1) / kRoundBlock * kRoundBlock,
                           -1);
  };
  for (const std::int32_t column : by_group) {
    if (group_of(column) != group) {
      group = group_of(column);
      fill_block();
    }
    grouped.columns.push_back(column);
  }
  fill_block();
  return grouped;
}

std::vector<std::byte> MakeGroupedRows(const TensorSource& source,
                                       const TensorInfo& tensor,
                                       const GroupedColumns& grouped,
                                       std::int64_t row_begin,
                                       std::int64_t row_end,
                                       std::int64_t col_begin) {
  const Maker maker(source, *tensor.parts);
  const std::size_t blocks = grouped.columns.size() / kRoundBlock;
  std::vector<std::byte> made(static_cast<std::size_t>(row_end - row_begin) * blocks *
                              static_cast<std::size_t>(BlockBytes(grouped.type)));
  std::byte* out = made.data();
  for (std::int64_t i = row_begin; i < row_end; ++i) {
    for (std::size_t block = 0; block < blocks; ++block) {
      out = maker.GroupedBlock(
          grouped.type, i, col_begin, grouped.columns.data() + block * kRoundBlock, out);
    }
  }
  return made;
}

std::optional<std::int64_t> ScaleColumns(const TensorInfo& tensor,
                                         std::int64_t col_begin,
                                         std::int64_t col_end) {
  INFERD_CHECK(tensor.parts != nullptr);
  const QuantisedParts& parts = *tensor.parts;
  if (parts.group_size >= parts.cols) {
    return col_end - col_begin;
  }
  if (col_begin % kRoundBlock != 0) {
    return std::nullopt;
  }
  return col_begin % parts.group_size == 0 ? parts.group_size : kRoundBlock;
}

std::optional<RowScales> ScalesOf(const TensorSource& source,
                                  const TensorInfo& tensor,
                                  std::int64_t row_begin,
                                  std::int64_t row_end,
                                  std::int64_t col_begin,
                                  std::int64_t col_end) {
  const std::optional<std::int64_t> group_columns = ScaleColumns(tensor, col_begin, col_end);
  if (!group_columns) {
    return std::nullopt;
  }
  const QuantisedParts& parts = *tensor.parts;
  const Maker maker(source, parts);
  RowScales scales;
  scales.group_columns = *group_columns;
  // A slice of a row has no scale of the whole row's largest value.
  scales.by_token = parts.by_token && col_begin == 0 && col_end == parts.cols;
  for (std::int64_t i = row_begin; i < row_end; ++i) {
    for (std::int64_t j = col_begin; j < col_end; j += scales.group_columns) {
      scales.values.push_back(parts.layout == Layout::kPlain ? maker.RoundedScale(i)
                                                             : maker.Scale(i, maker.GroupOf(j)));
    }
  }
  return scales;
}

std::uint64_t StoredBytes(const TensorInfo& tensor) {
  if (tensor.parts == nullptr || tensor.parts->layout == Layout::kPlain) {
    return tensor.bytes;
  }
  const QuantisedParts& parts = *tensor.parts;
  return parts.weight.bytes + parts.scales.bytes + (parts.zeros ? parts.zeros->bytes : 0) +
         (parts.group_index ? parts.group_index->bytes : 0);
}

void DropPages(const TensorSource& source, const TensorInfo& tensor) {
  INFERD_CHECK(tensor.parts != nullptr);
  const auto drop = [&source](const TensorInfo& part) {
    source.files()[part.file].DontNeed(part.offset, part.bytes);
  };
  drop(tensor.parts->weight);
  if (tensor.parts->layout != Layout::kPlain) {
    drop(tensor.parts->scales);
  }
}

}  // namespace inferd::store
