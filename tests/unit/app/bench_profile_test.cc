// SPDX-License-Identifier: Apache-2.0
// The built-in profile that a GPU's measurement begins with.
#include "app/bench_profile.h"

#include <gtest/gtest.h>

#include <string>

namespace inferd::app {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

std::string Like(std::string_view gpu_name, std::int64_t gib) {
  const auto table = cost::DeviceTable::Load("");
  EXPECT_TRUE(table.ok());
  const auto profile = ProfileLike(gpu_name, gib * kGiB, *table);
  if (!profile.ok()) {
    return "none";
  }
  EXPECT_EQ(profile->memory_bytes, gib * kGiB);
  return profile->name;
}

TEST(BenchProfile, AGpuIsKnownByAWholeWordOfItsName) {
  EXPECT_EQ(Like("NVIDIA A10", 22), "A10");
  EXPECT_EQ(Like("NVIDIA A10G", 22), "A10");
  EXPECT_EQ(Like("NVIDIA A100-SXM4-40GB", 20), "A100-40G") << "nearer to an A10's memory";
  EXPECT_EQ(Like("NVIDIA A100 80GB PCIe", 80), "A100-80G");
  EXPECT_EQ(Like("NVIDIA H100 80GB HBM3", 80), "H100");
  EXPECT_EQ(Like("NVIDIA H200", 140), "H200");
  EXPECT_EQ(Like("NVIDIA A1000", 6), "none");
}

}  // namespace
}  // namespace inferd::app
