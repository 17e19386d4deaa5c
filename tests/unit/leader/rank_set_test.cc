// SPDX-License-Identifier: Apache-2.0
// The life of a replica's ranks on a fake clock with fake peers: spawn, load, join, lose, abort,
// come back.
#include "leader/rank_set.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace inferd::leader {
namespace {

class FakePeer : public rpc::Peer {
 public:
  explicit FakePeer(std::uint64_t worker_id) { hello_.worker_id = worker_id; }
  const rpc::Hello& hello() const override { return hello_; }
  bool Send(const rpc::ToWorker& message) override {
    sent.push_back(message);
    return !closed;
  }
  void Close() override { closed = true; }
  void Refuse(const Error& /*error*/) override {}

  template <class T>
  int Count() const {
    int count = 0;
    for (const rpc::ToWorker& message : sent) {
      count += std::holds_alternative<T>(message) ? 1 : 0;
    }
    return count;
  }

  std::vector<rpc::ToWorker> sent;
  bool closed = false;

 private:
  rpc::Hello hello_;
};

class FakeHost : public WorkerHost {
 public:
  std::uint64_t SpawnWorker(int, int rank, std::int32_t) override {
    spawned.push_back(rank);
    return ++last_id;
  }
  void KillWorker(std::uint64_t worker_id, std::int32_t) override { killed.push_back(worker_id); }

  std::uint64_t last_id = 0;
  std::vector<int> spawned;
  std::vector<std::uint64_t> killed;
};

class RankSetTest : public testing::Test {
 protected:
  RankSetTest() : ranks_(Options(), &host_, clock_) {}

  static RankSetOptions Options() {
    RankSetOptions options;
    options.loads.resize(2);
    options.loads[0].shard.has_embedding = options.loads[0].shard.has_head = true;
    options.loads[1].shard.rank = 1;
    options.loads[1].shard.tp_rank = 1;
    options.loads[1].shard.has_embedding = options.loads[1].shard.has_head = true;
    options.nodes = {0, 0};
    return options;
  }

  std::shared_ptr<FakePeer> Attach(std::uint64_t id) {
    auto peer = std::make_shared<FakePeer>(id);
    ranks_.OnHello(peer);
    return peer;
  }

  void LoadAndJoin(std::uint64_t generation) {
    ranks_.BeginGeneration(generation);
    EXPECT_FALSE(ranks_.Tick());
    peers_ = {Attach(1), Attach(2)};
    ranks_.OnLoaded(1, {});
    EXPECT_FALSE(ranks_.Tick());
    EXPECT_EQ(peers_[0]->Count<spec::JoinRequest>(), 0) << "joined before all had loaded";
    ranks_.OnLoaded(2, {});
    EXPECT_FALSE(ranks_.Tick());
    ranks_.OnJoined(1, {generation});
    EXPECT_FALSE(ranks_.running());
    ranks_.OnJoined(2, {generation});
    EXPECT_TRUE(ranks_.running());
  }

  base::FakeClock clock_;
  FakeHost host_;
  RankSet ranks_;
  std::vector<std::shared_ptr<FakePeer>> peers_;
};

TEST_F(RankSetTest, AllLoadThenAllJoin) {
  LoadAndJoin(1);
  EXPECT_EQ(host_.spawned, (std::vector<int>{0, 1}));
  EXPECT_EQ(peers_[0]->Count<spec::LoadRequest>(), 1);
  EXPECT_EQ(peers_[1]->Count<spec::JoinRequest>(), 1);
  EXPECT_TRUE(ranks_.Broadcast(rpc::Shutdown{}));
}

TEST_F(RankSetTest, ALostRankIsReplacedAndTheSurvivorKeepsItsWeights) {
  LoadAndJoin(1);
  ranks_.OnLost(1, "killed");
  EXPECT_FALSE(ranks_.running());
  EXPECT_TRUE(ranks_.Tick()) << "the loss of a running rank ends the generation";
  EXPECT_EQ(host_.spawned.size(), 3U) << "the first respawn is at once";
  ranks_.BeginGeneration(2);
  EXPECT_FALSE(ranks_.Tick());
  EXPECT_EQ(peers_[1]->Count<rpc::Abort>(), 1);
  ranks_.OnIdle(2, {1});
  const auto replacement = Attach(3);
  ranks_.OnLoaded(3, {});
  EXPECT_FALSE(ranks_.Tick());
  EXPECT_EQ(peers_[1]->Count<spec::LoadRequest>(), 1) << "the survivor loaded again";
  EXPECT_EQ(peers_[1]->Count<spec::JoinRequest>(), 2);
  ranks_.OnJoined(2, {2});
  ranks_.OnJoined(3, {2});
  EXPECT_TRUE(ranks_.running());
  EXPECT_EQ(ranks_.restarts(), 1U);
}

TEST_F(RankSetTest, ARankThatDoesNotLeaveItsStepIsKilled) {
  LoadAndJoin(1);
  ranks_.BeginGeneration(2);
  EXPECT_FALSE(ranks_.Tick());
  ranks_.OnIdle(1, {1});
  clock_.AdvanceMs(2'001);
  EXPECT_FALSE(ranks_.Tick()) << "the generation was ended already";
  EXPECT_EQ(host_.killed, std::vector<std::uint64_t>{2});
  EXPECT_TRUE(peers_[1]->closed);
}

TEST_F(RankSetTest, AsleepRanksGiveBackMemoryAndWaitToBeWoken) {
  LoadAndJoin(1);
  ranks_.Sleep(2, false);
  EXPECT_FALSE(ranks_.running());
  EXPECT_FALSE(ranks_.at_rest());
  for (const auto& peer : peers_) {
    EXPECT_TRUE(std::get<rpc::Abort>(peer->sent.back()).release_memory);
  }
  ranks_.OnIdle(1, {1});
  ranks_.OnIdle(2, {1});
  EXPECT_TRUE(ranks_.at_rest());
  ranks_.OnLost(2, "killed", true);  // is not replaced now
  clock_.AdvanceMs(60'000);
  EXPECT_FALSE(ranks_.Tick());
  EXPECT_EQ(host_.spawned.size(), 2U);
  EXPECT_EQ(peers_[0]->Count<spec::JoinRequest>(), 1) << "joined asleep";
  ranks_.Wake();
  EXPECT_FALSE(ranks_.Tick());
  EXPECT_EQ(host_.spawned.size(), 3U);
  const auto replacement = Attach(3);
  ranks_.OnLoaded(3, {});
  EXPECT_FALSE(ranks_.Tick());
  EXPECT_EQ(peers_[0]->Count<spec::JoinRequest>(), 2);
  EXPECT_EQ(peers_[0]->Count<spec::LoadRequest>(), 1) << "the weights were kept";
  ranks_.OnJoined(1, {2});
  ranks_.OnJoined(3, {2});
  EXPECT_TRUE(ranks_.running());
}

TEST_F(RankSetTest, AsleepForGoodTheProcessesEndAndThatIsNoLoss) {
  LoadAndJoin(1);
  ranks_.Sleep(2, true);
  EXPECT_EQ(peers_[0]->Count<rpc::Shutdown>(), 1);
  ranks_.OnIdle(1, {1});
  EXPECT_FALSE(ranks_.at_rest());
  ranks_.OnLost(1, "its stream ended");
  ranks_.OnLost(1, "it ended", true);
  EXPECT_FALSE(ranks_.at_rest());
  clock_.AdvanceMs(2'001);  // the other one does not end by itself
  EXPECT_FALSE(ranks_.Tick());
  EXPECT_EQ(host_.killed.back(), 2U);
  EXPECT_FALSE(ranks_.at_rest()) << "its memory is not free yet";
  ranks_.OnLost(2, "its stream ended");
  EXPECT_FALSE(ranks_.at_rest());
  ranks_.OnLost(2, "killed", true);
  EXPECT_TRUE(ranks_.at_rest());
  EXPECT_EQ(ranks_.restarts(), 0U);
  ranks_.Wake();
  EXPECT_FALSE(ranks_.Tick());
  EXPECT_EQ(host_.spawned.size(), 4U) << "both are started anew, at once";
}

TEST_F(RankSetTest, OnTheWayToSleepALongStepMayEnd) {
  LoadAndJoin(1);
  ranks_.Sleep(2, false);
  ranks_.OnIdle(1, {1});
  clock_.AdvanceMs(19'000);
  EXPECT_FALSE(ranks_.Tick());
  EXPECT_TRUE(host_.killed.empty());
  ranks_.OnIdle(2, {1});
  EXPECT_TRUE(ranks_.at_rest());
  EXPECT_EQ(ranks_.restarts(), 0U);
}

TEST_F(RankSetTest, OnTheWayToSleepAHungWorkerIsKilledAndItsExitWaitedForButNotForEver) {
  LoadAndJoin(1);
  ranks_.Sleep(2, false);
  ranks_.OnIdle(1, {1});
  clock_.AdvanceMs(20'001);
  EXPECT_FALSE(ranks_.Tick());
  EXPECT_EQ(host_.killed, std::vector<std::uint64_t>{2});
  EXPECT_FALSE(ranks_.at_rest());
  clock_.AdvanceMs(9'000);
  EXPECT_FALSE(ranks_.Tick());
  EXPECT_FALSE(ranks_.at_rest());
  clock_.AdvanceMs(1'001);
  EXPECT_FALSE(ranks_.Tick());
  EXPECT_TRUE(ranks_.at_rest());
  EXPECT_EQ(ranks_.restarts(), 1U);
}

TEST_F(RankSetTest, MessagesOfAnOldGenerationOrWorkerChangeNothing) {
  LoadAndJoin(1);
  ranks_.OnLost(1, "killed");
  ranks_.BeginGeneration(2);
  ranks_.OnJoined(2, {1});
  ranks_.OnJoined(1, {2});
  ranks_.OnLoaded(1, {});
  EXPECT_FALSE(ranks_.running());
  const auto stranger = Attach(77);
  EXPECT_TRUE(stranger->closed);
  EXPECT_EQ(stranger->Count<spec::LoadRequest>(), 0);
}

TEST_F(RankSetTest, RespawnsOfAWorkerThatKeepsDyingSlowDown) {
  ranks_.BeginGeneration(1);
  std::vector<std::int64_t> waits_ms;
  for (int death = 0; death < 6; ++death) {
    const std::size_t before = host_.spawned.size();
    std::int64_t waited = 0;
    while (host_.spawned.size() == before && waited < 20'000) {
      ranks_.Tick();
      clock_.AdvanceMs(10);
      waited += 10;
    }
    waits_ms.push_back(waited);
    ranks_.OnLost(host_.last_id, "died");
  }
  EXPECT_LE(waits_ms[1], 20);
  EXPECT_GT(waits_ms[5], waits_ms[2]);
  EXPECT_LT(waits_ms[5], 10'000);
}

TEST_F(RankSetTest, LoadingWithoutProgressEndsTheWorker) {
  ranks_.BeginGeneration(1);
  ranks_.Tick();
  Attach(1);
  clock_.AdvanceMs(100'000);
  ranks_.OnLoadProgress(1, {10, 100});
  clock_.AdvanceMs(100'000);
  ranks_.Tick();
  EXPECT_EQ(ranks_.RankOf(1), 0) << "it made progress 100 s ago";
  clock_.AdvanceMs(30'000);
  ranks_.Tick();
  EXPECT_EQ(ranks_.RankOf(1), -1);
}

}  // namespace
}  // namespace inferd::leader
