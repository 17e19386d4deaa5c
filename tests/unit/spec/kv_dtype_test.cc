// SPDX-License-Identifier: Apache-2.0
#include "spec/kv_dtype.h"

#include <gtest/gtest.h>

#include <string>

namespace inferd::spec {
namespace {

TEST(KvDtype, EveryNameIsParsedAndNoOther) {
  const auto names = KvDtypeNames();
  EXPECT_GE(names.size(), 6U);
  for (const std::string& name : names) {
    EXPECT_TRUE(ParseKvDtype(name).ok()) << name;
  }
  for (const char* const other : {"", "fp4", "FP8", "auto "}) {
    EXPECT_FALSE(ParseKvDtype(other).ok()) << other;
  }
}

TEST(KvDtype, EveryTypeHasTheNameThatIsParsedForIt) {
  for (const KvDtype dtype : {KvDtype::kAuto,
                              KvDtype::kBf16,
                              KvDtype::kF32,
                              KvDtype::kF16,
                              KvDtype::kFp8,
                              KvDtype::kInt8}) {
    const auto parsed = ParseKvDtype(KvDtypeName(dtype));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, dtype) << KvDtypeName(dtype);
  }
  EXPECT_EQ(KvDtypeName(KvDtype::kFp8), "fp8_e4m3");
  EXPECT_EQ(KvDtypeName(KvDtype::kF16), "float16");
}

TEST(KvDtype, ACheckpointDecidesWhereNobodyElseDoes) {
  EXPECT_EQ(KvDtypeFor(KvDtype::kAuto, true), KvDtype::kFp8);
  EXPECT_EQ(KvDtypeFor(KvDtype::kAuto, false), KvDtype::kAuto);
  EXPECT_EQ(KvDtypeFor(KvDtype::kF16, true), KvDtype::kF16);
}

}  // namespace
}  // namespace inferd::spec
