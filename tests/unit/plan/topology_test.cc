// SPDX-License-Identifier: Apache-2.0
#include "plan/topology.h"

#include "plan/host_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace inferd::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kTwoIslands =
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV12\tSYS\tSYS\tPXB\t0-3,8-11\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tSYS\tSYS\tPXB\t0-3,8-11\t0\t\tN/A\n"
    "GPU2\tSYS\tSYS\t X \tNV12\tSYS\t4-7,12-15\t1\t\tN/A\n"
    "GPU3\tSYS\tSYS\tNV12\t X \tSYS\t4-7,12-15\t1\t\tN/A\n"
    "NIC0\tPXB\tPXB\tSYS\tSYS\t X \n"
    "\nLegend:\n  X    = Self\n";

TEST(Topology, DomainsAreCliquesOfNvlink) {
  const auto topology = ParseNvidiaTopology("f", kTwoIslands);
  ASSERT_TRUE(topology.ok()) << topology.error().message();
  EXPECT_THAT(topology->domains, ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_EQ(PathName(topology->paths[0][1]), "NV12");
  EXPECT_EQ(topology->devices[2].numa_node, 1);
  EXPECT_THAT(topology->devices[0].cpus, ElementsAre(0, 1, 2, 3, 8, 9, 10, 11));
  EXPECT_FALSE(topology->devices[4].compute);
  EXPECT_THAT(DescribeTopology(*topology), HasSubstr("--tp of at most 2"));
  EXPECT_THAT(TopologyJson(*topology), HasSubstr("\"domains\""));
}

TEST(Topology, WithoutNvlinkANumaNodeIsADomain) {
  const auto topology = ParseNvidiaTopology("f",
                                            "     GPU0 GPU1 GPU2\nGPU0 X PHB SYS\nGPU1 PHB X SYS\n"
                                            "GPU2 SYS SYS X\n");
  ASSERT_TRUE(topology.ok()) << topology.error().message();
  EXPECT_THAT(topology->domains, ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
}

TEST(Topology, HostileTextIsRefusedByName) {
  const struct {
    const char* text;
    const char* says;
  } cases[] = {
      {"", "no device"},
      {"rm -rf /\n", "line 1 begins with 'rm'"},
      {"GPU0 GPU1\nGPU0 X NV12\n", "row of GPU1 is missing"},
      {"GPU0 GPU1\nGPU0 X WARP\nGPU1 WARP X\n", "'WARP' is not a link"},
      {"GPU0 GPU1\nGPU0 X NV999\nGPU1 NV999 X\n", "'NV999'"},
      {"GPU0 GPU1\nGPU0 X NV12\nGPU1 SYS X\n", "but back it is"},
      {"GPU0 GPU1\nGPU0 NV1 X\nGPU1 X NV1\n", "X stands for a device itself"},
      {"GPU0 GPU1\nGPU1 X SYS\nGPU0 SYS X\n", "GPU0 comes next"},
      {"GPU0 GPU1\nGPU0 X\n", "1 of 2 links"},
      {"GPU0 GPU0\n", "twice"},
      {"GPU0\nGPU0 X 0-99999999\n", "list of CPUs"},
      {"GPU0\nGPU0 X 5-2\n", "list of CPUs"},
      {"\x01\x02\xff\n", "'?\?\?'"},
  };
  for (const auto& one : cases) {
    const auto topology = ParseNvidiaTopology("f", one.text);
    ASSERT_FALSE(topology.ok()) << one.text;
    EXPECT_THAT(topology.error().message(), HasSubstr(one.says)) << one.text;
  }
  std::string many = "GPU0";
  for (int i = 1; i < 2000; ++i) {
    many += " GPU" + std::to_string(i);
  }
  EXPECT_THAT(ParseNvidiaTopology("f", many).error().message(), HasSubstr("more than 1024"));
  EXPECT_FALSE(ParseNvidiaTopology("f", std::string(5 << 20, ' ')).ok());
}

TEST(Topology, ThisHostHasCoresInDomains) {
  const auto topology = CoreTopology();
  ASSERT_TRUE(topology.ok()) << topology.error().message();
  ASSERT_FALSE(topology->devices.empty());
  std::size_t in_domains = 0;
  for (const auto& domain : topology->domains) {
    in_domains += domain.size();
  }
  EXPECT_EQ(in_domains, topology->devices.size());
  EXPECT_TRUE(HostTopology().ok());
}

}  // namespace
}  // namespace inferd::plan
