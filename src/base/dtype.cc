// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.h"

#include "base/check.h"

#include <array>

namespace inferd {
namespace {

struct Row {
  DType type;
  std::string_view name;
  std::int64_t elements;
  std::int64_t bytes;
};

constexpr std::array kTable = {
    Row{DType::kF32, "F32", 1, 4},
    Row{DType::kF16, "F16", 1, 2},
    Row{DType::kBF16, "BF16", 1, 2},
    Row{DType::kF8E4M3, "F8_E4M3", 1, 1},
    Row{DType::kI32, "I32", 1, 4},
    Row{DType::kI8, "I8", 1, 1},
    Row{DType::kU8, "U8", 1, 1},
    Row{DType::kQ4_0, "Q4_0", 32, 18},
    Row{DType::kQ4_1, "Q4_1", 32, 20},
    Row{DType::kQ5_0, "Q5_0", 32, 22},
    Row{DType::kQ5_1, "Q5_1", 32, 24},
    Row{DType::kQ8_0, "Q8_0", 32, 34},
    Row{DType::kQ2_K, "Q2_K", 256, 84},
    Row{DType::kQ3_K, "Q3_K", 256, 110},
    Row{DType::kQ4_K, "Q4_K", 256, 144},
    Row{DType::kQ5_K, "Q5_K", 256, 176},
    Row{DType::kQ6_K, "Q6_K", 256, 210},
    Row{DType::kIQ4_NL, "IQ4_NL", 32, 18},
    Row{DType::kIQ4_XS, "IQ4_XS", 256, 136},
    Row{DType::kMXFP4, "MXFP4", 32, 17},
};

const Row& Find(DType type) {
  for (const Row& row : kTable) {
    if (row.type == type) {
      return row;
    }
  }
  base::CheckFailed("known dtype", {});
}

}  // namespace

std::string_view DTypeName(DType type) { return Find(type).name; }
std::int64_t BlockElements(DType type) { return Find(type).elements; }
std::int64_t BlockBytes(DType type) { return Find(type).bytes; }

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const Row& row : kTable) {
    if (row.name == name) {
      return row.type;
    }
  }
  return std::nullopt;
}

}  // namespace inferd
