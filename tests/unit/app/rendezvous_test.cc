// SPDX-License-Identifier: Apache-2.0
// Contract, not controller: the variables are those that LeaderWorkerSet, KServe, StatefulSets,
// torchrun, Open MPI and Slurm set.
#include "app/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace inferd::app {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

struct Outcome {
  ClusterConfig cluster;
  std::string by;
  std::string error;
};

Outcome Apply(const Variables& variables, ClusterConfig cluster = {}) {
  const Environment environment = [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
  Outcome outcome;
  const auto by = ApplyRendezvous(environment, &cluster);
  outcome.cluster = cluster;
  outcome.by = by.ok() ? *by : "";
  outcome.error = by.ok() ? "" : by.error().message();
  return outcome;
}

TEST(Rendezvous, NothingIsNothing) {
  const Outcome alone = Apply({});
  EXPECT_EQ(alone.by, "");
  EXPECT_EQ(alone.cluster.nnodes, 1);
  EXPECT_EQ(alone.cluster.leader, "");
}

TEST(Rendezvous, LeaderWorkerSet) {
  ClusterConfig worker;
  worker.nnodes = 2;  // settings took LWS_GROUP_SIZE and LWS_WORKER_INDEX
  worker.node_rank = 1;
  const Variables variables = {{"LWS_GROUP_SIZE", "2"},
                               {"LWS_WORKER_INDEX", "1"},
                               {"LWS_LEADER_ADDRESS", "llm-0.llm.default"}};
  EXPECT_EQ(Apply(variables, worker).cluster.leader, "llm-0.llm.default:7000");
  worker.leader = "10.0.0.1:9";
  EXPECT_EQ(Apply(variables, worker).cluster.leader, "10.0.0.1:9");  // flags win
  ClusterConfig leader;
  leader.nnodes = 2;
  EXPECT_EQ(Apply(variables, leader).cluster.leader, "0.0.0.0:7000");
  leader.leader = "10.0.0.1:9";
  EXPECT_EQ(Apply(variables, leader).cluster.leader, "10.0.0.1:9");
}

TEST(Rendezvous, KServeWorkersAreGivenTheirRank) {
  const Outcome worker =
      Apply({{"HEAD_SVC", "llm-head-1"}, {"POD_NAMESPACE", "ml"}, {"RAY_NODE_COUNT", "3"}});
  EXPECT_EQ(worker.by, "HEAD_SVC");
  EXPECT_EQ(worker.cluster.node_rank, -1);
  EXPECT_EQ(worker.cluster.nnodes, 3);
  EXPECT_EQ(worker.cluster.leader, "llm-head-1.ml.svc:7000");
}

TEST(Rendezvous, StatefulSetOrdinal) {
  ClusterConfig three;
  three.nnodes = 3;
  const Variables variables = {
      {"POD_NAME", "llm-2"}, {"SERVICE_NAME", "peers"}, {"POD_NAMESPACE", "ml"}};
  const Outcome worker = Apply(variables, three);
  EXPECT_EQ(worker.cluster.node_rank, 2);
  EXPECT_EQ(worker.cluster.leader, "llm-0.peers.ml.svc:7000");
  EXPECT_EQ(Apply({{"POD_INDEX", "0"}, {"POD_NAME", "llm-0"}}, three).cluster.leader,
            "0.0.0.0:7000");
  EXPECT_THAT(Apply({{"POD_INDEX", "3"}, {"POD_NAME", "llm-3"}}, three).error,
              HasSubstr("POD_INDEX is 3"));
  EXPECT_EQ(Apply(variables).by, "");  // a pod of a deployment of single hosts
}

TEST(Rendezvous, TorchrunMpiAndSlurm) {
  const Outcome torch = Apply({{"RANK", "1"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_WORLD_SIZE", "1"},
                               {"MASTER_ADDR", "10.1.1.1"},
                               {"MASTER_PORT", "29500"}});
  EXPECT_EQ(torch.by, "torchrun");
  EXPECT_EQ(torch.cluster.nnodes, 4);
  EXPECT_EQ(torch.cluster.node_rank, 1);
  EXPECT_EQ(torch.cluster.leader, "10.1.1.1:7000");
  const Outcome mpi = Apply(
      {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "3"}, {"MASTER_ADDR", "head"}});
  EXPECT_EQ(mpi.by, "Open MPI");
  EXPECT_EQ(mpi.cluster.node_rank, 2);
  EXPECT_EQ(Apply({{"SLURM_NODEID", "0"}, {"SLURM_NNODES", "2"}}).cluster.leader, "0.0.0.0:7000");
  EXPECT_EQ(Apply({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).by, "");
}

TEST(Rendezvous, RefusesByName) {
  EXPECT_THAT(Apply({{"RANK", "1"}, {"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "8"}}).error,
              HasSubstr("one process per host"));
  EXPECT_THAT(Apply({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).error, HasSubstr("RANK is 'x'"));
  EXPECT_THAT(Apply({{"RANK", "5"}, {"WORLD_SIZE", "2"}}).error, HasSubstr("WORLD_SIZE is 2"));
}

}  // namespace
}  // namespace inferd::app
