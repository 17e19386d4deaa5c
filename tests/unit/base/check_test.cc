// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"

#include <gtest/gtest.h>

namespace inferd::base {
namespace {

TEST(CheckDeathTest, DiesNamingTheConditionAndThePlace) {
  INFERD_CHECK(1 + 1 == 2);
  EXPECT_DEATH(INFERD_CHECK(1 + 1 == 3), "1 \\+ 1 == 3");
  EXPECT_DEATH(INFERD_CHECK(false), "check_test.cc");
  EXPECT_DEATH(INFERD_CHECK_MSG(false, "because"), "because");
}

}  // namespace
}  // namespace inferd::base
