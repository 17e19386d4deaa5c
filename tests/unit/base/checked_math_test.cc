// SPDX-License-Identifier: Apache-2.0
#include "base/checked_math.h"

#include <gtest/gtest.h>

#include <limits>

namespace inferd::base {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

TEST(CheckedMath, AddsUpToTheLimit) {
  EXPECT_EQ(CheckedAdd(2, 3), 5U);
  EXPECT_EQ(CheckedAdd(kMax - 1, 1), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 1), std::nullopt);
  EXPECT_EQ(CheckedAdd(kMax, kMax), std::nullopt);
}

TEST(CheckedMath, MultipliesUpToTheLimit) {
  EXPECT_EQ(CheckedMul(6, 7), 42U);
  EXPECT_EQ(CheckedMul(kMax, 0), 0U);
  EXPECT_EQ(CheckedMul(std::uint64_t{1} << 32, (std::uint64_t{1} << 32) - 1),
            kMax - ((std::uint64_t{1} << 32) - 1));
  EXPECT_EQ(CheckedMul(std::uint64_t{1} << 32, std::uint64_t{1} << 32), std::nullopt);
}

TEST(CheckedMath, AlignsWithoutWrapping) {
  EXPECT_EQ(CheckedAlignUp(0, 32), 0U);
  EXPECT_EQ(CheckedAlignUp(1, 32), 32U);
  EXPECT_EQ(CheckedAlignUp(32, 32), 32U);
  EXPECT_EQ(CheckedAlignUp(7, 1), 7U);
  // Wraps only because of the padding.
  EXPECT_EQ(CheckedAlignUp(kMax - 30, 32), std::nullopt);
  EXPECT_EQ(CheckedAlignUp(kMax - 31, 32), kMax - 31);
}

}  // namespace
}  // namespace inferd::base
