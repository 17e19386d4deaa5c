// SPDX-License-Identifier: Apache-2.0
// Quantised linear layers of safetensors checkpoints: AWQ, GPTQ (with and without act-order), FP8
// (one scale, one per row, or 128x128 blocks) and compressed-tensors. A layer is stored as several
// tensors (X.qweight, X.scales, ...); they are folded into one, X.weight, whose rows are made when
// they are read.
#pragma once

#include "inferd/result.h"
#include "store/json_util.h"
#include "store/tensor_source.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::store {

/// quantization_config of config.json, as far as it tells how values are stored.
struct QuantConfig {
  enum class Method : std::uint8_t { kAwq, kGptq, kFp8, kCompressed };
  Method method = Method::kFp8;
  int bits = 0;                 // AWQ and GPTQ
  std::int64_t group_size = 0;  // AWQ and GPTQ; -1: all inputs
  bool zero_plus_one = false;   // GPTQ's first format stores zeros less one
  /// compressed-tensors: inputs are rounded to this type with a scale per token, as they come.
  std::optional<DType> token_activations;
  bool fp8_kv = false;  // kv_cache_scheme: the KV cache is meant to be E4M3
};

/// nullopt: the checkpoint is not quantised. Refuses methods and variants that are not known, by
/// name.
Result<std::optional<QuantConfig>> ReadQuantConfig(const JsonFields& config);

/// The names of a layer's KV scales, after "...layers.N.self_attn.", that for K first.
struct KvScaleNames {
  std::string_view k;
  std::string_view v;
};
std::span<const KvScaleNames> KnownKvScales();

/// Replaces the stored parts of each quantised layer by one tensor. Refuses parts that are absent,
/// left over, or whose shapes do not fit each other, by tensor name.
Result<> FoldQuantised(const QuantConfig& config,
                       const std::vector<base::MappedFile>& files,
                       std::vector<TensorInfo>* tensors);

/// Rows [row_begin, row_end), columns [col_begin, col_end) of a folded tensor as `type`, one row
/// after the other: its dtype, or BF16. The columns are whole blocks of the type.
std::vector<std::byte> MakeRows(const TensorSource& source,
                                const TensorInfo& tensor,
                                DType type,
                                std::int64_t row_begin,
                                std::int64_t row_end,
                                std::int64_t col_begin,
                                std::int64_t col_end);

/// What a tensor takes in the files, all its parts together, or, where it is rounded while loading,
/// as its new type.
std::uint64_t StoredBytes(const TensorInfo& tensor);

/// What the E4M3 or int8 values of a folded tensor whose dtype is that are multiplied by.
struct RowScales {
  std::vector<float> values;       // [rows, groups of columns]
  std::int64_t group_columns = 0;  // per scale: all columns, or a multiple of 32
  bool by_token = false;  // the scheme rounds the layer's inputs too, per token; whole rows
};
/// RowScales::group_columns of these columns; nullopt: they do not begin where a kernel's groups
/// can.
std::optional<std::int64_t> ScaleColumns(const TensorInfo& tensor,
                                         std::int64_t col_begin,
                                         std::int64_t col_end);
/// Of these rows and columns; nullopt where ScaleColumns is.
std::optional<RowScales> ScalesOf(const TensorSource& source,
                                  const TensorInfo& tensor,
                                  std::int64_t row_begin,
                                  std::int64_t row_end,
                                  std::int64_t col_begin,
                                  std::int64_t col_end);

/// Columns of a 4-bit tensor whose groups are not in order (act-order), put beside those of their
/// group, so that the stored bits can stay.
struct GroupedColumns {
  DType type = DType::kQ4_0;  // or Q4_1: of the rows
  /// Which column stands here, counted from the first of the range; -1 fills up a group's last
  /// block, and has nothing to multiply. Whole blocks, each of one group.
  std::vector<std::int32_t> columns;
};
/// GroupedColumns::type of a tensor that has them.
DType GroupedType(const TensorInfo& tensor);
/// How many GroupedColumns::columns there are, without sorting any. nullopt: the groups are in
/// order, the values have not 4 bits, the groups have so few of these columns that filling up
/// blocks would more than double them, or the file has changed since it was opened and names groups
/// that there are not. Values of columns in those are not finite, however they are made.
std::optional<std::int64_t> GroupedWidth(const TensorSource& source,
                                         const TensorInfo& tensor,
                                         std::int64_t col_begin,
                                         std::int64_t col_end);
/// Of columns [col_begin, col_end): by group, in a group by place. nullopt where GroupedWidth is.
std::optional<GroupedColumns> GroupColumns(const TensorSource& source,
                                           const TensorInfo& tensor,
                                           std::int64_t col_begin,
                                           std::int64_t col_end);
/// Rows [row_begin, row_end) of those columns as grouped.type, one row after the other.
std::vector<std::byte> MakeGroupedRows(const TensorSource& source,
                                       const TensorInfo& tensor,
                                       const GroupedColumns& grouped,
                                       std::int64_t row_begin,
                                       std::int64_t row_end,
                                       std::int64_t col_begin);

/// Gives back what this process has mapped of a folded tensor's parts; reading maps it again.
void DropPages(const TensorSource& source, const TensorInfo& tensor);

}  // namespace inferd::store
