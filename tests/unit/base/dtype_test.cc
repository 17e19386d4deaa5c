// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <set>

namespace inferd {
namespace {

TEST(DType, NamesGoBothWays) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(DType::kMXFP4); ++i) {
    const auto type = static_cast<DType>(i);
    EXPECT_TRUE(names.insert(DTypeName(type)).second);
    EXPECT_EQ(DTypeFromName(DTypeName(type)), type);
  }
  EXPECT_EQ(DTypeFromName("Q9_9"), std::nullopt);
}

// Bits per weight that the format's documentation states.
TEST(DType, BlocksHaveTheDocumentedDensity) {
  const auto bits = [](DType type) {
    return 8.0 * static_cast<double>(BlockBytes(type)) / static_cast<double>(BlockElements(type));
  };
  EXPECT_EQ(bits(DType::kF32), 32);
  EXPECT_EQ(bits(DType::kBF16), 16);
  EXPECT_EQ(bits(DType::kQ4_0), 4.5);
  EXPECT_EQ(bits(DType::kQ5_0), 5.5);
  EXPECT_EQ(bits(DType::kQ8_0), 8.5);
  EXPECT_EQ(bits(DType::kQ2_K), 2.625);
  EXPECT_EQ(bits(DType::kQ3_K), 3.4375);
  EXPECT_EQ(bits(DType::kQ4_K), 4.5);
  EXPECT_EQ(bits(DType::kQ5_K), 5.5);
  EXPECT_EQ(bits(DType::kQ6_K), 6.5625);
  EXPECT_EQ(bits(DType::kIQ4_NL), 4.5);
  EXPECT_EQ(bits(DType::kIQ4_XS), 4.25);
  EXPECT_EQ(bits(DType::kMXFP4), 4.25);
}

}  // namespace
}  // namespace inferd
