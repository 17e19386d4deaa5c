// SPDX-License-Identifier: Apache-2.0
#include "cost/sim_device.h"

#include <gtest/gtest.h>

namespace inferd::cost {
namespace {

TEST(SimDeviceTest, ReadsProfileSpeedAndModel) {
  const auto plain = ParseSimDevice("sim:H100");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->profile.name, "H100");
  EXPECT_EQ(plain->model, "");
  EXPECT_EQ(plain->slower, 1);
  const auto all = ParseSimDevice("sim:A100-80G:1g.10gb@2.5/llama-3.2-1b");
  ASSERT_TRUE(all.ok()) << all.error().message();
  EXPECT_EQ(all->model, "llama-3.2-1b");
  EXPECT_EQ(all->slower, 2.5);
  EXPECT_LT(all->profile.memory_bytes, std::int64_t{11} << 30);
}

TEST(SimDeviceTest, RefusesWhatIsNoSpeed) {
  for (const char* const device : {"sim:H100@",
                                   "sim:H100@0",
                                   "sim:H100@0.5",
                                   "sim:H100@x",
                                   "sim:H100@2x",
                                   "sim:H100@nan",
                                   "sim:H100@1e9",
                                   "sim:H100@-2/llama-70b"}) {
    const auto read = ParseSimDevice(device);
    ASSERT_FALSE(read.ok()) << device;
    EXPECT_EQ(read.error().code(), Code::kInvalidArgument) << device;
  }
  EXPECT_EQ(ParseSimDevice("sim:H300@2").error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace inferd::cost
