// SPDX-License-Identifier: Apache-2.0
// What a group does when a rank is late, dies, aborts or makes another call than the rest.
#include "unit/comm/spawn.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>

namespace inferd::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::ElementsAre;

std::int64_t MsSince(steady_clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - start).count();
}

/// An abort is heard within this time.
constexpr std::int64_t kWakeMs = kThreadSanitizer ? 500 : 100;

class FaultsTest : public testing::TestWithParam<Backend> {
 protected:
  SpawnOptions Options(int size) const {
    SpawnOptions options;
    options.backend = GetParam();
    options.size = size;
    return options;
  }
};

using Call = std::function<Result<>(Communicator&)>;

/// One block for all long calls, made once: filling it takes longer than the waits that are
/// measured here.
std::span<float> LongBlock() {
  static std::vector<float> block(1U << 20);
  return block;
}

/// Calls in which rank 0 waits for rank 1.
std::vector<std::pair<std::string, Call>> CallsThatNeedRank1() {
  LongBlock();
  return {
      {"barrier", [](Communicator& comm) { return comm.Barrier(); }},
      {"all_reduce",
       [](Communicator& comm) {
         std::vector<float> data(10);
         return comm.AllReduceSum(data);
       }},
      {"large all_reduce",
       [](Communicator& comm) { return comm.AllReduceSum(LongBlock().first(1'000'000)); }},
      {"recv",
       [](Communicator& comm) {
         std::vector<std::byte> data(10);
         return comm.Recv(data, 1);
       }},
      {"send",
       [](Communicator& comm) {
         Result<> sent;
         for (int i = 0; sent.ok() && i < 100; ++i) {  // more than any buffer holds
           sent = comm.Send(std::as_bytes(LongBlock().first(1U << 18)), 1);
         }
         return sent;
       }},
  };
}

TEST_P(FaultsTest, LateRankIsNamedAtTheDeadline) {
  for (const auto& [name, call] : CallsThatNeedRank1()) {
    SCOPED_TRACE(name);
    SharedNumbers numbers;
    SpawnOptions options = Options(2);
    options.call_deadline = milliseconds(150);
    SpawnAndExpect(options, [&](Communicator& comm) -> std::string {
      if (comm.rank() == 1) {
        return numbers.Await(0, 1) ? "" : "rank 0 never gave up";
      }
      const auto start = steady_clock::now();
      const Result<> result = call(comm);
      const std::int64_t ms = MsSince(start);
      const std::string again =
          SayUnless(comm.Barrier(), Code::kDeadlineExceeded, "rank 1 *is late");
      numbers[0] = 1;
      if (ms < 150 || ms > 2000) {
        return "gave up after " + std::to_string(ms) + " ms";
      }
      return SayUnless(result, Code::kDeadlineExceeded, "rank 1 *is late") + again;
    });
  }
}

TEST_P(FaultsTest, LateRankIsNamedAmongMany) {
  SharedNumbers numbers;
  SpawnOptions options = Options(4);
  options.call_deadline = milliseconds(150);
  SpawnAndExpect(options, [&](Communicator& comm) -> std::string {
    if (comm.rank() == 2) {
      return numbers.Await(0, 3) ? "" : "the others never gave up";
    }
    std::vector<float> data(100);
    const std::string said =
        SayUnless(comm.AllReduceSum(data), Code::kDeadlineExceeded, "rank 2 *is late");
    numbers[0].fetch_add(1);
    // Nobody leaves first: a rank that goes is a fault of its own.
    numbers.Await(0, 3);
    return said;
  });
}

TEST_P(FaultsTest, AbortWakesThisRankAtOnce) {
  for (const auto& [name, call] : CallsThatNeedRank1()) {
    SCOPED_TRACE(name);
    SharedNumbers numbers;
    SpawnAndExpect(Options(2), [&](Communicator& comm) -> std::string {
      if (comm.rank() == 1) {
        return numbers.Await(0, 1) ? "" : "rank 0 never came back";
      }
      std::atomic<std::int64_t> aborted_at_ms = 0;
      const auto start = steady_clock::now();
      std::thread aborter([&] {
        ::poll(nullptr, 0, 50);  // long enough for the call to be asleep
        aborted_at_ms = MsSince(start);
        comm.Abort();
        comm.Abort();
      });
      const Result<> result = call(comm);
      const std::int64_t ms = MsSince(start);
      aborter.join();
      numbers[0] = 1;
      if (ms - aborted_at_ms > kWakeMs) {
        return "woke " + std::to_string(ms - aborted_at_ms) + " ms after the abort";
      }
      return SayUnless(result, Code::kAborted, "abort") +
             SayUnless(comm.Barrier(), Code::kAborted, "abort");
    });
  }
}

TEST_P(FaultsTest, AbortReachesTheOthers) {
  SharedNumbers numbers;
  SpawnAndExpect(Options(4), [&](Communicator& comm) -> std::string {
    if (comm.rank() == 3) {
      ::poll(nullptr, 0, 50);
      numbers[1] = steady_clock::now().time_since_epoch().count();
      comm.Abort();
      return numbers.Await(0, 3) ? "" : "the others never woke";
    }
    const Result<> result = comm.Barrier();
    const std::int64_t late_ns = steady_clock::now().time_since_epoch().count() - numbers[1];
    numbers[0].fetch_add(1);
    numbers.Await(0, 3);
    if (result.ok() || late_ns > kWakeMs * 1'000'000) {
      return "woke " + std::to_string(late_ns / 1000) + " us after the abort: " + Say(result);
    }
    // Sockets tell only that the peer is gone.
    return result.error().code() == Code::kAborted
               ? SayUnless(result, Code::kAborted, "rank 3 aborted")
               : SayUnless(result, Code::kUnavailable, "gone");
  });
}

TEST_P(FaultsTest, RankThatLeftIsGone) {
  SharedNumbers numbers;
  SpawnAndExpect(Options(3), [&](Communicator& comm) -> std::string {
    if (auto done = comm.Barrier(); !done.ok() || comm.rank() == 1) {
      return Say(done);
    }
    const auto start = steady_clock::now();
    const std::string said = SayUnless(comm.Barrier(), Code::kUnavailable, "rank 1");
    const std::int64_t ms = MsSince(start);
    numbers[0].fetch_add(1);
    numbers.Await(0, 2);
    return ms > 500 ? "noticed after " + std::to_string(ms) + " ms" : said;
  });
}

TEST_P(FaultsTest, RanksOutOfStepAreTold) {
  SharedNumbers numbers;
  const auto said = Spawn(Options(2), [&](Communicator& comm) {
    std::vector<float> data(comm.rank() == 0 ? 8 : 16);
    const Result<> result = comm.AllReduceSum(data);
    numbers[0].fetch_add(1);
    numbers.Await(0, 2);
    return Say(result);
  });
  EXPECT_THAT(said, testing::Each(testing::StartsWith("INTERNAL")));
}

TEST_P(FaultsTest, UnequalMessageIsRefused) {
  SharedNumbers numbers;
  const auto said = Spawn(Options(2), [&](Communicator& comm) {
    std::vector<std::byte> data(comm.rank() == 0 ? 8 : 16);
    const Result<> result = comm.rank() == 0 ? comm.Send(data, 1) : comm.Recv(data, 0);
    numbers[0].fetch_add(1);
    numbers.Await(0, 2);
    return Say(result);
  });
  EXPECT_THAT(said[1], testing::ContainsRegex("sent 8 bytes where .* expects 16"));
}

TEST_P(FaultsTest, WrongArgumentsLeaveTheGroupWhole) {
  SpawnAndExpect(Options(2), [](Communicator& comm) {
    std::vector<float> out(4);
    std::vector<float> in(2);
    std::vector<std::byte> bytes(4);
    const std::vector<std::size_t> short_counts = {2};
    const std::vector<std::size_t> wrong_sum = {2, 3};
    const std::vector<std::size_t> wrapping = {~std::size_t{0}, 5};
    std::string said =
        SayUnless(comm.AllGather(in, out, short_counts), Code::kInvalidArgument, "1 counts");
    said += SayUnless(comm.AllGather(in, out, wrong_sum), Code::kInvalidArgument, "add up to 5");
    said += SayUnless(
        comm.AllToAllV(bytes, wrapping, bytes, wrapping), Code::kInvalidArgument, "add up");
    said += SayUnless(comm.Broadcast(bytes, 2), Code::kInvalidArgument, "rank 2");
    said += SayUnless(comm.Broadcast(bytes, -1), Code::kInvalidArgument, "rank -1");
    said += SayUnless(comm.Send(bytes, comm.rank()), Code::kInvalidArgument, "cannot send to");
    said += SayUnless(comm.Recv(bytes, 2), Code::kInvalidArgument, "cannot receive from rank 2");
    return said + Say(comm.Barrier());
  });
}

/// For backends whose ranks are processes.
class KillTest : public FaultsTest {};

TEST_P(KillTest, KilledProcessIsNoticed) {
  for (const auto& [name, call] : CallsThatNeedRank1()) {
    SCOPED_TRACE(name);
    SharedNumbers numbers;
    const auto said = Spawn(Options(2), [&](Communicator& comm) -> std::string {
      if (auto joined = comm.Barrier(); !joined.ok()) {
        return Say(joined);
      }
      if (comm.rank() == 1) {
        numbers[1] = steady_clock::now().time_since_epoch().count();
        ::kill(::getpid(), SIGKILL);
      }
      const Result<> result = call(comm);
      const std::int64_t late_ms =
          (steady_clock::now().time_since_epoch().count() - numbers[1]) / 1'000'000;
      return late_ms > 1000 ? "noticed after " + std::to_string(late_ms) + " ms"
                            : SayUnless(result, Code::kUnavailable, "rank 1 ");
    });
    EXPECT_THAT(said, ElementsAre("", "signal 9"));
  }
}

TEST_P(KillTest, KilledProcessIsNoticedByAll) {
  SharedNumbers numbers;
  const auto said = Spawn(Options(4), [&](Communicator& comm) -> std::string {
    std::vector<float> data(100'000);
    Result<> result;
    for (int call = 0; result.ok() && call < 1'000'000; ++call) {
      if (comm.rank() == 2 && call == 50) {
        ::kill(::getpid(), SIGKILL);
      }
      result = comm.AllReduceSum(data);
    }
    numbers[0].fetch_add(1);
    numbers.Await(0, 3);
    return SayUnless(result, Code::kUnavailable, "gone");
  });
  EXPECT_THAT(said, ElementsAre("", "", "signal 9", ""));
}

INSTANTIATE_TEST_SUITE_P(All,
                         FaultsTest,
                         testing::ValuesIn(Backends()),
                         [](const testing::TestParamInfo<Backend>& test) {
                           return BackendName(test.param);
                         });

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KillTest);
INSTANTIATE_TEST_SUITE_P(All,
                         KillTest,
                         testing::ValuesIn(ProcessBackends()),
                         [](const testing::TestParamInfo<Backend>& test) {
                           return BackendName(test.param);
                         });

TEST(FakeGroupTest, HookKillsARank) {
  FakeGroupOptions options;
  options.size = 3;
  options.before_call = [](int rank, std::uint64_t call) -> Result<> {
    if (rank == 1 && call == 2) {
      return Error(Code::kUnavailable, "killed by the test");
    }
    return {};
  };
  const auto group = MakeFakeGroup(options);
  std::vector<std::string> said(3);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      Result<> done;
      int calls = 0;
      while (done.ok() && calls < 10) {
        done = group[r]->Barrier();
        calls += done.ok() ? 1 : 0;
      }
      said[r] = std::to_string(calls) + " " + Say(done);
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_THAT(said[0], testing::HasSubstr("2 UNAVAILABLE: barrier: rank 1 is gone"));
  EXPECT_EQ(said[1], "2 UNAVAILABLE: killed by the test");
  EXPECT_THAT(said[2], testing::HasSubstr("rank 1 is gone"));
}

}  // namespace
}  // namespace inferd::comm
