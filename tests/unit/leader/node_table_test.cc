// SPDX-License-Identifier: Apache-2.0
#include "leader/node_table.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace inferd::leader {
namespace {

/// An agent of another host, as the control server shows it.
class FakePeer : public rpc::Peer {
 public:
  FakePeer(std::int32_t rank, std::int32_t cpus, std::uint64_t id) {
    hello_.worker_id = id;
    hello_.kind = rpc::Hello::Kind::kNodeAgent;
    hello_.node_rank = rank;
    hello_.num_cpus = cpus;
  }
  const rpc::Hello& hello() const override { return hello_; }
  bool Send(const rpc::ToWorker&) override {
    ++sent;
    return true;
  }
  void Close() override { closed = true; }
  void Refuse(const Error& error) override { refused = error.message(); }

  int sent = 0;
  bool closed = false;
  std::string refused;

 private:
  rpc::Hello hello_;
};

std::shared_ptr<FakePeer> Join(NodeTable* table,
                               std::int32_t rank,
                               std::int32_t cpus,
                               std::uint64_t id = 0) {
  auto peer = std::make_shared<FakePeer>(rank, cpus, id);
  table->OnAgentHello(peer);
  return peer;
}

TEST(NodeTable, AgentsWithoutARankGetOneThatIsFree) {
  std::vector<std::string> lost;
  NodeTable table(4, {}, [&](std::uint64_t, const std::string& how) { lost.push_back(how); });
  const auto second = Join(&table, 2, 20);
  const auto first = Join(&table, -1, 10);
  const auto third = Join(&table, -1, 30);
  const auto refused = Join(&table, -1, 40);
  EXPECT_EQ(refused->refused, "all ranks of the 4 nodes are taken");
  EXPECT_FALSE(first->closed || second->closed || third->closed);
  EXPECT_EQ(table.AgentCpus(), (std::vector<std::int32_t>{0, 10, 20, 30}));
  EXPECT_TRUE(table.WaitForAgents(0, [] { return false; }).ok());
  table.Spawn(77, 3);
  EXPECT_EQ(third->sent, 1);
  EXPECT_EQ(first->sent, 0);

  table.OnAgentClosed(third);
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_EQ(lost[0], "node 3 is gone");
  const auto back = Join(&table, -1, 31);
  EXPECT_EQ(table.AgentCpus()[3], 31);
}

TEST(NodeTable, ARankIsTakenOnceAndMustExist) {
  NodeTable table(3, {}, [](std::uint64_t, const std::string&) {});
  const auto first = Join(&table, 1, 1, 11);
  const auto second = Join(&table, 1, 1, 12);
  EXPECT_NE(second->refused.find("rank 1 is taken"), std::string::npos) << second->refused;
  table.OnAgentClosed(second);
  EXPECT_EQ(first->refused, "");
  EXPECT_EQ(table.AgentCpus()[1], 1) << "the refused one has taken nothing with it";
  EXPECT_NE(Join(&table, 3, 1)->refused.find("1 to 2"), std::string::npos);
  EXPECT_NE(Join(&table, 0, 1)->refused, "");
}

TEST(NodeTable, AnAgentThatIsBackReplacesItsOldStream) {
  std::vector<std::string> lost;
  NodeTable table(3, {}, [&](std::uint64_t, const std::string& how) { lost.push_back(how); });
  const auto first = Join(&table, -1, 1, 11);
  const auto other = Join(&table, -1, 2, 12);
  table.Spawn(77, 1);
  const auto back = Join(&table, -1, 3, 11);
  EXPECT_TRUE(first->closed);
  EXPECT_EQ(back->refused, "");
  EXPECT_EQ(lost, (std::vector<std::string>{"node 1 is gone"}));
  table.OnAgentClosed(first);  // late
  EXPECT_EQ(lost.size(), 1U);
  EXPECT_EQ(table.AgentCpus(), (std::vector<std::int32_t>{0, 3, 2}));
  EXPECT_FALSE(other->closed);
}

TEST(NodeTable, ANodeThatIsAwayTooLongIsNamed) {
  NodeTable table(3, {}, [](std::uint64_t, const std::string&) {});
  constexpr std::int64_t kLongMs = 3'600'000;
  EXPECT_EQ(table.LostNode(0), -1);  // not there yet is not lost
  const auto first = Join(&table, 1, 1);
  const auto second = Join(&table, 2, 1);
  EXPECT_EQ(table.LostNode(0), -1);
  table.OnAgentClosed(second);
  EXPECT_EQ(table.LostNode(kLongMs), -1);
  EXPECT_EQ(table.LostNode(-1), 2);
  EXPECT_TRUE(Join(&table, 2, 1)->hello().node_rank == 2);
  EXPECT_EQ(table.LostNode(-1), -1);
}

}  // namespace
}  // namespace inferd::leader
