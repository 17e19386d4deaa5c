// SPDX-License-Identifier: Apache-2.0
// What people see of a long download or load.
#include "app/progress.h"

#include <gtest/gtest.h>

namespace inferd::app {
namespace {

TEST(ProgressLine, ShowsShareAndBytes) {
  EXPECT_EQ(ProgressLine("loading", 512 << 20, 1 << 30),
            "loading [###############               ]  50%  512.0 MiB of 1.00 GiB");
  EXPECT_EQ(ProgressLine("x", 0, 1 << 20),
            "x [                              ]   0%  0.0 MiB of 1.0 MiB");
  EXPECT_NE(ProgressLine("x", 5 << 20, 1 << 20).find("100%"), std::string::npos)
      << "more than announced";
  EXPECT_EQ(ProgressLine("x", 1 << 20, 0), "x 1.0 MiB") << "size not known";
  EXPECT_EQ(ProgressLine("requests", 3, 4, ProgressUnit::kRequests),
            "requests [######################        ]  75%  3 of 4");
}

}  // namespace
}  // namespace inferd::app
