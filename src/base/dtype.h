// SPDX-License-Identifier: Apache-2.0
// Element and block formats of stored weights: names, block sizes and bytes. Facts of the GGUF and
// safetensors specs.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace inferd {

/// Storage format of a tensor. Quantised formats (kQ4_0 and on) store blocks of BlockElements()
/// consecutive values of a row.
enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kI32,
  kI8,
  kU8,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
};

/// "F32", "Q4_K", ... as GGUF and safetensors spell them.
std::string_view DTypeName(DType type);
std::optional<DType> DTypeFromName(std::string_view name);

/// Values per block: 1 for plain types, 32 or 256 for quantised ones.
std::int64_t BlockElements(DType type);
/// Bytes of one block (of one value for plain types).
std::int64_t BlockBytes(DType type);

}  // namespace inferd
