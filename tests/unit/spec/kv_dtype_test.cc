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

}  // namespace
}  // namespace inferd::spec
