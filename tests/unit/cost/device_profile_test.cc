// SPDX-License-Identifier: Apache-2.0
#include "cost/device_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace inferd::cost {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr const char* kGood = R"(
name: X1
memory_mib: 1024
bandwidth_gb_s: 100
tflops_16bit: 10
efficiency: {weights: 0.5}
sources: ["a data sheet"]
)";

TEST(DeviceTable, BuiltInProfilesAreCompleteAndFoundByAnyName) {
  const auto table = DeviceTable::Load("");
  ASSERT_TRUE(table.ok()) << table.error().message();
  for (const char* name : {"A100-40G", "A100-80G", "H100", "H200", "B200", "L40S", "A10", "cpu"}) {
    const auto device = table->Find(name);
    ASSERT_TRUE(device.ok()) << name;
    EXPECT_GT(device->memory_bytes, device->reserved_bytes);
    EXPECT_GT(device->efficiency.step_s, 0) << name;
    EXPECT_GT(device->network.bytes_per_s, 0) << name;
    EXPECT_FALSE(device->sources.empty()) << name;
    // A price is that of a list on some day; CPUs have none.
    const bool is_cpu = device->name == "cpu";
    EXPECT_EQ(device->price_per_hour > 0, !is_cpu) << name;
    if (!is_cpu) {
      EXPECT_THAT(device->sources, Contains(ContainsRegex("^price: .* list of 20[0-9][0-9]-")))
          << name;
    }
  }
  EXPECT_EQ(table->Find("a100-80gb")->name, "A100-80G");
  EXPECT_EQ(table->Find("H200")->bandwidth, 4.8e12);
  const auto unknown = table->Find("H300");
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.error().message(), AllOf(HasSubstr("H300"), HasSubstr("H200")));
}

TEST(DeviceTable, AMigSliceIsADeviceWithoutPeers) {
  const auto table = DeviceTable::Load("");
  ASSERT_TRUE(table.ok());
  const auto slice = table->Find("A100-80G:1g.10gb");
  ASSERT_TRUE(slice.ok()) << slice.error().message();
  EXPECT_EQ(slice->domain_devices, 1);
  EXPECT_EQ(slice->peer.bytes_per_s, 0);
  EXPECT_NEAR(slice->bandwidth, 2.039e12 / 8, 1e9);
  EXPECT_LT(slice->memory_bytes, 10LL << 30);
  EXPECT_DOUBLE_EQ(slice->price_per_hour, table->Find("A100-80G")->price_per_hour / 7);
  EXPECT_THAT(table->Find("A100-80G:9g.1gb").error().message(), HasSubstr("1g.10gb"));
  EXPECT_THAT(table->Find("L40S:1g.10gb").error().message(), HasSubstr("it has none"));
}

TEST(DeviceTable, RefusesWhatItDoesNotKnowByName) {
  const struct {
    std::string more;
    const char* says;
  } cases[] = {
      {"colour: red\n", "colour"},
      {"price_per_hour: -1\n", "price_per_hour"},
      {"reserved_mib: 2048\n", "reserved_mib"},
      {"peer_link: {latency_us: 1}\n", "gb_s is missing"},
      {"mig: [{per_device: 2}]\n", "a slice needs name"},
      {"kind: tpu\n", "tpu"},
      {"load_gb_s: fast\n", "bad conversion"},
      {"a: [\n", "X"},
  };
  ASSERT_TRUE(DeviceTable::Parse("f", kGood).ok());
  for (const auto& one : cases) {
    const auto table = DeviceTable::Parse("X", kGood + one.more);
    ASSERT_FALSE(table.ok()) << one.more;
    EXPECT_THAT(table.error().message(), HasSubstr(one.says)) << one.more;
  }
  EXPECT_THAT(DeviceTable::Parse("f", "name: X\nsources: [a]\nefficiency: {}").error().message(),
              HasSubstr("bandwidth_gb_s"));
}

}  // namespace
}  // namespace inferd::cost
