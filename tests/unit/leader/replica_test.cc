// SPDX-License-Identifier: Apache-2.0
// How long a replica waits for lost ranks, and when it stands still: on a clock of the test's own,
// with peers that answer only what a test makes them answer.
#include "leader/replica.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace inferd::leader {
namespace {

class SharedClock : public base::Clock {
 public:
  std::int64_t NowNs() const override { return now_ns_.load(); }
  void AdvanceMs(std::int64_t ms) { now_ns_.fetch_add(ms * base::kNsPerMs); }

 private:
  std::atomic<std::int64_t> now_ns_{1'000'000'000};
};

class FakePeer : public rpc::Peer {
 public:
  explicit FakePeer(std::uint64_t worker_id) { hello_.worker_id = worker_id; }
  const rpc::Hello& hello() const override { return hello_; }
  bool Send(const rpc::ToWorker& message) override {
    const std::lock_guard lock(mutex_);
    sent_.push_back(message);
    return true;
  }
  void Close() override {}
  void Refuse(const Error& /*error*/) override {}

  template <class T>
  bool Got() const {
    const std::lock_guard lock(mutex_);
    for (const rpc::ToWorker& message : sent_) {
      if (std::holds_alternative<T>(message)) {
        return true;
      }
    }
    return false;
  }

 private:
  rpc::Hello hello_;
  mutable std::mutex mutex_;
  std::vector<rpc::ToWorker> sent_;
};

class FakeHost : public WorkerHost {
 public:
  std::uint64_t SpawnWorker(int, int, std::int32_t) override { return last_id.fetch_add(1) + 1; }
  void KillWorker(std::uint64_t, std::int32_t) override {}

  std::atomic<std::uint64_t> last_id{0};
};

class Sink : public EventSink {
 public:
  void Publish(std::span<OutputEvent> /*batch*/) override {}
};

class ReplicaTest : public testing::Test {
 protected:
  ReplicaTest()
      : hasher_(engine::PrefixHasher::Random(32)),
        replica_(Options(&clock_), &host_, &hasher_, [](std::int64_t) {}) {
    replica_.Start();
    auto peer = Attach(1);
    replica_.OnMessage(1, rpc::Loaded{});
    Until([&] { return peer->Got<spec::JoinRequest>(); });
    replica_.OnMessage(1, rpc::Joined{1});
    Until([&] { return replica_.phase() == Phase::kReady; });
    first_ = peer;
  }

  static ReplicaOptions Options(const base::Clock* clock) {
    ReplicaOptions options;
    options.clock = clock;
    options.ranks.loads.resize(1);
    options.ranks.loads[0].shard.has_embedding = options.ranks.loads[0].shard.has_head = true;
    options.ranks.nodes = {0};
    options.ranks.step_deadline_ms = 1'000'000'000;
    options.scheduler.num_pages = 16;
    options.vocab_size = 100;
    options.recovery_deadline_ms = 20'000;
    options.stall_deadline_ms = 40'000;
    return options;
  }

  /// Real time only bounds how long a broken build takes to fail.
  static void Until(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      ::poll(nullptr, 0, 1);
    }
  }

  /// The worker of that id, once it has been spawned, up to its loading.
  std::shared_ptr<FakePeer> Attach(std::uint64_t id) {
    Until([&] { return host_.last_id.load() >= id; });
    auto peer = std::make_shared<FakePeer>(id);
    replica_.OnHello(peer);
    Until([&] { return peer->Got<spec::LoadRequest>(); });
    return peer;
  }

  /// The worker says how far it has loaded; afterwards the engine thread has looked at the time.
  void Load(std::uint64_t id, std::int64_t bytes) {
    for (int i = 0; i < 2; ++i) {
      replica_.OnMessage(id, rpc::LoadProgress{bytes, ++total_});
      Until([&] { return replica_.load_progress().bytes_total == total_; });
    }
  }

  void Submit() {
    GenerateRequest request;
    request.sink = &sink_;
    request.prompt = {1, 2, 3};
    request.max_tokens = 4;
    ASSERT_TRUE(replica_.Submit(std::move(request), {}, 7, nullptr).ok());
  }

  SharedClock clock_;
  FakeHost host_;
  Sink sink_;
  const engine::PrefixHasher hasher_;
  Replica replica_;
  std::shared_ptr<FakePeer> first_;
  std::int64_t total_ = 1'000;
};

TEST_F(ReplicaTest, AReloadThatGoesOnIsWaitedForHoweverLongItTakes) {
  replica_.OnExit(1, "killed");
  const auto peer = Attach(2);
  Submit();
  for (int i = 1; i <= 8; ++i) {
    clock_.AdvanceMs(18'000);
    Load(2, i * 10);
    EXPECT_FALSE(replica_.lost_for_good()) << 18 * i << " s";
    EXPECT_EQ(replica_.stalled_ms(), 0) << 18 * i << " s";
    EXPECT_TRUE(replica_.has_requests());
  }
  replica_.OnMessage(2, rpc::Loaded{});
  Until([&] { return peer->Got<spec::JoinRequest>(); });
  replica_.OnMessage(2, rpc::Joined{2});
  Until([&] { return peer->Got<spec::StepPlan>(); });
}

TEST_F(ReplicaTest, WorkersThatDieAtTheSamePlaceAgainAndAgainAreLost) {
  replica_.OnExit(1, "killed");
  Attach(2);
  Submit();
  clock_.AdvanceMs(10'000);
  Load(2, 50);
  clock_.AdvanceMs(10'000);
  replica_.OnExit(2, "died");
  Until([&] {
    clock_.AdvanceMs(1);  // the pause before it is spawned again
    return host_.last_id.load() >= 3;
  });
  Attach(3);
  Load(3, 50);
  EXPECT_FALSE(replica_.lost_for_good()) << "the first one loaded for some time";
  clock_.AdvanceMs(12'000);
  Load(3, 50);
  EXPECT_TRUE(replica_.lost_for_good());
  Until([&] { return !replica_.has_requests(); });
  clock_.AdvanceMs(60'000);
  Load(3, 50);
  EXPECT_EQ(replica_.stalled_ms(), 0) << "nobody waits for it, and others may serve";
}

TEST_F(ReplicaTest, OneThatWasGivenUpAndLoadsOnIsNoLongerLost) {
  replica_.OnExit(1, "killed");
  Attach(2);
  clock_.AdvanceMs(21'000);
  Load(2, 0);
  EXPECT_TRUE(replica_.lost_for_good());
  Load(2, 10);
  EXPECT_FALSE(replica_.lost_for_good());
}

TEST_F(ReplicaTest, WakingIsNotALossHoweverLongItTakes) {
  replica_.Sleep(2, false);
  replica_.OnExit(1, "ended");
  Until([&] { return replica_.rested(); });
  replica_.WakeUp();
  Attach(2);
  clock_.AdvanceMs(kWakeMost.count() + 1'000);
  Until([&] {
    clock_.AdvanceMs(1);
    return host_.last_id.load() >= 3;
  });
  Attach(3);
  Load(3, 1);
  EXPECT_FALSE(replica_.lost_for_good());
  EXPECT_EQ(replica_.stalled_ms(), 0);
}

TEST_F(ReplicaTest, AStepAndThenARecoveryWithinTheirDeadlinesAreNoStandstill) {
  Submit();
  Until([&] { return first_->Got<spec::StepPlan>(); });
  clock_.AdvanceMs(28'000);
  replica_.OnExit(1, "killed");
  Attach(2);
  clock_.AdvanceMs(18'000);
  EXPECT_EQ(replica_.stalled_ms(), 0);
}

TEST_F(ReplicaTest, AStepThatDoesNotEndIsAStandstill) {
  Submit();
  Until([&] { return first_->Got<spec::StepPlan>(); });
  clock_.AdvanceMs(28'000);
  EXPECT_EQ(replica_.stalled_ms(), 0);
  clock_.AdvanceMs(60'000);
  EXPECT_GE(replica_.stalled_ms(), 60'000);
}

}  // namespace
}  // namespace inferd::leader
