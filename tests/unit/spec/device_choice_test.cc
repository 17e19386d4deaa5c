// SPDX-License-Identifier: Apache-2.0
#include "spec/device_choice.h"

#include <gtest/gtest.h>

namespace inferd::spec {
namespace {

TEST(DeviceChoiceTest, DealsDevicesToTheRanksOfAHost) {
  const auto first = ParseDevice("cuda");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(*DeviceOfRank(*first, 3), "cuda:3");
  const auto named = ParseDevice("cuda:2,GPU-8f1e-00,MIG-00ff");
  ASSERT_TRUE(named.ok()) << named.error().message();
  EXPECT_EQ(*DeviceOfRank(*named, 0), "cuda:2");
  EXPECT_EQ(*DeviceOfRank(*named, 1), "cuda:GPU-8f1e-00");
  EXPECT_EQ(*DeviceOfRank(*named, 2), "cuda:MIG-00ff");
  EXPECT_EQ(DeviceOfRank(*named, 3).error().message(),
            "--device names 3 devices, but rank 3 of the host needs one too");
  EXPECT_EQ(*DeviceOfRank(*ParseDevice("cuda-emu"), 1), "cuda-emu:1");
  EXPECT_FALSE(DeviceOfRank(*ParseDevice("cuda-emu:2"), 2).ok());
  EXPECT_EQ(*DeviceOfRank(*ParseDevice("cpu"), 7), "cpu");
  EXPECT_EQ(*DeviceOfRank(*ParseDevice("sim:H100/llama-70b"), 7), "sim:H100/llama-70b");
}

TEST(DeviceChoiceTest, RefusesWhatNamesNoDevice) {
  for (const char* text : {"",
                           "gpu",
                           "cpu:0",
                           "cuda:",
                           "cuda:0,,1",
                           "cuda:-1",
                           "cuda:GPU-",
                           "cuda:0x1",
                           "cuda:4096",
                           "cuda:MIG-xyz",
                           "cuda-emu:",
                           "cuda-emu:0",
                           "cuda-emu:two"}) {
    const auto choice = ParseDevice(text);
    EXPECT_FALSE(choice.ok()) << text;
    if (!choice.ok()) {
      EXPECT_NE(choice.error().message().find("--device is"), std::string::npos);
    }
  }
}

TEST(DeviceChoiceTest, RefusesGroupsOverMigSlicesAndADeviceTwice) {
  ParallelSpec parallel;
  const DeviceChoice slices = *ParseDevice("cuda:MIG-aa,MIG-bb");
  parallel.dp = 2;
  EXPECT_TRUE(CheckDevices(slices, parallel).ok());
  parallel.tp = 2;
  const auto refused = CheckDevices(slices, parallel);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("no peer access"), std::string::npos);
  EXPECT_FALSE(CheckDevices(*ParseDevice("cuda:1,0,1"), parallel).ok());
}

}  // namespace
}  // namespace inferd::spec
