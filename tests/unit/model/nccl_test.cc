// SPDX-License-Identifier: Apache-2.0
// comm's NCCL backend with ops' CUDA device, both as in a worker, on the emulated device and the
// emulated NCCL: results, and every way in which a group ends.
#include "comm/nccl.h"

#include "comm/nccl_api.h"
#include "kernels/simt/nccl.h"
#include "kernels/simt/runtime_api.h"
#include "ops/device.h"
#include "unit/comm/spawn.h"
#include "unit/model/hung_device.h"

#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <numeric>

namespace inferd::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

/// As model::Rank guards its groups.
class Guard final : public tensor::WaitGuard {
 public:
  explicit Guard(Communicator& group) : group_(group) {}
  Result<> Check(std::chrono::nanoseconds waited) override {
    return group_.device()->Check(waited);
  }

 private:
  Communicator& group_;
};

/// A rank: its device, and a group that is joined.
struct Joined {
  std::unique_ptr<ops::Device> device;
  std::unique_ptr<Communicator> group;
  std::unique_ptr<Guard> guard;

  ops::Memory Upload(const std::vector<float>& values) const {
    auto memory = device->Allocate(values.size() * sizeof(float), "a test");
    EXPECT_TRUE(memory.ok());
    device->Copy(memory->data(), values.data(), values.size() * sizeof(float));
    EXPECT_EQ(Say(device->Wait()), "");  // `values` may be gone soon
    return *std::move(memory);
  }
  std::vector<float> Download(const ops::Memory& memory) const {
    std::vector<float> values(memory.bytes() / sizeof(float));
    device->Copy(values.data(), memory.data(), memory.bytes());
    const Result<> waited = device->Wait();
    EXPECT_TRUE(waited.ok()) << Say(waited);
    return values;
  }
};

/// Where the ranks of a test meet: made before its threads and processes.
struct Meeting {
  GroupOptions options;
  std::vector<std::unique_ptr<TcpListener>> listeners;
  std::vector<std::string> endpoints;

  explicit Meeting(int size) {
    options.id = FreshId();
    options.generation = 1;
    options.size = size;
    options.join_deadline = options.call_deadline = seconds(20);
    options.peer_memory = true;
    for (int rank = 0; rank < size; ++rank) {
      auto listener = ListenTcp("127.0.0.1");
      EXPECT_TRUE(listener.ok());
      endpoints.push_back((*listener)->endpoint());
      listeners.push_back(*std::move(listener));
    }
  }
};

void LeaveGroup(Joined* joined) {
  joined->device->queue()->SetGuard(nullptr);
  joined->group.reset();
}

Result<> JoinGroup(const Meeting& meeting,
                   std::uint64_t generation,
                   int rank,
                   Joined* joined,
                   milliseconds within = seconds(20)) {
  GroupOptions options = meeting.options;
  options.generation = generation;
  options.rank = rank;
  options.join_deadline = within;
  LeaveGroup(joined);
  INFERD_ASSIGN(std::unique_ptr<Communicator> host,
                JoinTcp(options,
                        *meeting.listeners[static_cast<std::size_t>(rank)],
                        meeting.endpoints,
                        "test secret"));
  INFERD_ASSIGN(joined->group, JoinNccl(options, std::move(host), *joined->device->queue(), true));
  joined->guard = std::make_unique<Guard>(*joined->group);
  joined->device->queue()->SetGuard(joined->guard.get());
  return {};
}

Result<Joined> MakeRank(const Meeting& meeting, int rank, const std::string& device = "cuda-emu") {
  Joined joined;
  INFERD_ASSIGN(joined.device, ops::MakeDevice(device + ":" + std::to_string(rank), 1, {}));
  INFERD_TRY(JoinGroup(meeting, 1, rank, &joined));
  return joined;
}

using RankBody = std::function<std::string(Joined&)>;

void OnThreads(const Meeting& meeting, const RankBody& body) {
  std::vector<std::string> said(meeting.listeners.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < meeting.options.size; ++rank) {
    threads.emplace_back([&, rank] {
      auto joined = MakeRank(meeting, rank);
      said[static_cast<std::size_t>(rank)] = joined.ok() ? body(*joined) : joined.error().message();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(said, std::vector<std::string>(said.size()));
}

std::vector<float> Values(int rank, std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), static_cast<float>(1000 * rank));
  return values;
}

std::string SayUnlessEqual(const std::vector<float>& got,
                           const std::vector<float>& expected,
                           const std::string& what) {
  return got == expected ? "" : what + " differs; ";
}

TEST(NcclOnDeviceTest, CollectivesGiveWhatTheirNamesSay) {
  constexpr int kRanks = 3;
  // More than the emulated library moves at once.
  constexpr std::size_t kLong = 100'000;
  OnThreads(Meeting(kRanks), [](Joined& rank) {
    DeviceCollectives& nccl = *rank.group->device();
    const int own = rank.group->rank();
    std::string said;

    const ops::Memory sum = rank.Upload(Values(own, kLong));
    said += Say(nccl.AllReduceSum(sum.floats(), kLong));
    std::vector<float> expected(kLong);
    for (std::size_t i = 0; i < kLong; ++i) {
      expected[i] = 3000 + 3 * static_cast<float>(i);
    }
    said += SayUnlessEqual(rank.Download(sum), expected, "all_reduce");

    // Equal parts, and unequal ones in place, one of them empty.
    const ops::Memory part = rank.Upload(Values(own, 5));
    const ops::Memory all = rank.Upload(std::vector<float>(15));
    const std::vector<std::size_t> equal(3, 5 * sizeof(float));
    said += Say(nccl.AllGather(part.data(), all.data(), equal));
    expected = Values(0, 5);
    for (int r = 1; r < kRanks; ++r) {
      const auto theirs = Values(r, 5);
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    said += SayUnlessEqual(rank.Download(all), expected, "all_gather");
    const std::vector<std::size_t> unequal = {4 * sizeof(float), 0, 11 * sizeof(float)};
    std::vector<float> before(15, -1);
    const std::size_t at = own == 2 ? 4 : 0;
    const std::size_t count = unequal[static_cast<std::size_t>(own)] / sizeof(float);
    std::copy_n(Values(own, count).begin(), count, before.begin() + static_cast<long>(at));
    const ops::Memory in_place = rank.Upload(before);
    said += Say(nccl.AllGather(in_place.floats() + at, in_place.data(), unequal));
    expected = Values(0, 4);
    const auto last = Values(2, 11);
    expected.insert(expected.end(), last.begin(), last.end());
    said += SayUnlessEqual(rank.Download(in_place), expected, "all_gather in place");

    // Rank r sends r + 1 floats to each other and none to itself.
    std::vector<std::size_t> send(3, static_cast<std::size_t>(own + 1) * sizeof(float));
    std::vector<std::size_t> recv = {1 * sizeof(float), 2 * sizeof(float), 3 * sizeof(float)};
    send[static_cast<std::size_t>(own)] = recv[static_cast<std::size_t>(own)] = 0;
    const ops::Memory out = rank.Upload(Values(own, 2 * static_cast<std::size_t>(own + 1)));
    const ops::Memory in = rank.Upload(std::vector<float>(6 - static_cast<std::size_t>(own + 1)));
    said += Say(nccl.AllToAllV(out.data(), send, in.data(), recv));
    expected.clear();
    for (int r = 0; r < kRanks; ++r) {
      if (r != own) {
        const auto n = static_cast<std::size_t>(r + 1);
        const auto sent = Values(r, 2 * n);
        const bool second = own > (r == 0 ? 1 : 0) && !(r == 2 && own == 0);
        const auto from = sent.begin() + static_cast<long>(second ? n : 0);
        expected.insert(expected.end(), from, from + static_cast<long>(n));
      }
    }
    said += SayUnlessEqual(rank.Download(in), expected, "all_to_all_v");

    const ops::Memory message = rank.Upload(Values(own, kLong));
    if (own == 0) {
      said += Say(nccl.Send(message.data(), message.bytes(), 2));
    } else if (own == 2) {
      said += Say(nccl.Recv(message.data(), message.bytes(), 0));
    }
    said += SayUnlessEqual(rank.Download(message), Values(own == 2 ? 0 : own, kLong), "recv");
    return said + Say(rank.group->Barrier());
  });
}

// On one GPU this is all of the installed library that can be tried (tests/gpu/check.sh).
TEST(NcclAloneTest, AGroupOfOneRank) {
  const char* const device = std::getenv("INFERD_TEST_DEVICE");
  const std::string kind =
      device != nullptr ? std::string(device).substr(0, std::string(device).find(':')) : "cuda-emu";
  const Meeting meeting(1);
  auto rank = MakeRank(meeting, 0, kind);
  if (kind == "cuda" && !LoadNccl().ok()) {
    EXPECT_EQ(SayUnless(rank.ok() ? Result<>() : Result<>(rank.error()),
                        Code::kUnavailable,
                        "cannot use NCCL: rank 0 on"),
              "");
    return;
  }
  ASSERT_TRUE(rank.ok()) << rank.error().message();
  DeviceCollectives& nccl = *rank->group->device();
  const ops::Memory data = rank->Upload(Values(1, 1000));
  const ops::Memory copy = rank->Upload(std::vector<float>(1000));
  const std::vector<std::size_t> bytes = {4000};
  EXPECT_EQ(Say(nccl.AllReduceSum(data.floats(), 1000)), "");
  EXPECT_EQ(Say(nccl.AllToAllV(data.data(), bytes, copy.data(), bytes)), "");
  EXPECT_EQ(Say(nccl.AllGather(copy.data(), copy.data(), bytes)), "");
  EXPECT_EQ(rank->Download(copy), Values(1, 1000));
  rank->group->Abort();
  EXPECT_EQ(SayUnless(nccl.AllReduceSum(data.floats(), 1000), Code::kAborted, "aborted"), "");
}

TEST(NcclOnDeviceTest, AnAbortEndsAWaitAndLeavesTheDeviceWhole) {
  const Meeting meeting(2);
  OnThreads(meeting, [&](Joined& rank) -> std::string {
    const ops::Memory data = rank.Upload(Values(0, 8));
    std::string said;
    if (rank.group->rank() == 0) {
      // The peer never comes to this call.
      said += Say(rank.group->device()->AllReduceSum(data.floats(), 8));
      const auto began = Clock::now();
      std::thread other([&] {
        ::poll(nullptr, 0, 100);
        rank.group->Abort();
      });
      said += SayUnless(rank.device->Wait(), Code::kAborted, "all_reduce 1*aborted the group");
      other.join();
      said += Clock::now() - began < seconds(3) ? "" : "the abort took its time; ";
    } else {
      said += WaitUntilAPeerIsGone(*rank.group);
    }
    said += rank.device->Broken() ? "the device is broken; " : "";
    // A new generation on the same devices.
    said += Say(JoinGroup(meeting, 2, rank.group->rank(), &rank));
    const ops::Memory again = rank.Upload(std::vector<float>(8, 2));
    said += Say(rank.group->device()->AllReduceSum(again.floats(), 8));
    said += SayUnlessEqual(rank.Download(again), std::vector<float>(8, 4), "the next generation");
    return said + Say(rank.group->Barrier());
  });
}

TEST(NcclOnDeviceTest, ADeviceThatIsNotDoneDoesNotHoldAJoin) {
  const Meeting meeting(2);
  const RankBody body = [&](Joined& rank) -> std::string {
    const int own = rank.group->rank();
    LeaveGroup(&rank);
    const auto began = Clock::now();
    if (own == 1) {
      // It joins, and finds out that it is alone, or finds out at once.
      const bool joined = JoinGroup(meeting, 2, own, &rank, milliseconds(1'000)).ok();
      return joined ? WaitUntilAPeerIsGone(*rank.group) : "";
    }
    Blocked blocked(*rank.device);
    std::string said = SayUnless(JoinGroup(meeting, 2, own, &rank, milliseconds(1'000)),
                                 Code::kDeadlineExceeded,
                                 "rank 0 on * EMU-0: *not done with what is before it");
    said += rank.device->Broken() ? "" : "the device is not broken; ";
    blocked.Release();
    said += SayUnless(rank.device->Wait(), Code::kInternal, "a device of this worker hangs");
    return said + (Clock::now() - began < seconds(10) ? "" : "the join took its time; ");
  };
  InAProcessOfItsOwn([&] { OnThreads(meeting, body); });
}

TEST(NcclOnDeviceTest, AGroupEndsOnADeviceThatDoesNotComeToItsEnd) {
  const RankBody body = [](Joined& rank) -> std::string {
    if (rank.group->rank() == 1) {
      return WaitUntilAPeerIsGone(*rank.group);
    }
    const Blocked blocked(*rank.device);
    const auto began = Clock::now();
    LeaveGroup(&rank);
    const bool soon = Clock::now() - began < seconds(10);
    return std::string(soon ? "" : "it took its time; ") +
           (rank.device->Broken() ? "" : "the device is not broken; ");
  };
  InAProcessOfItsOwn([&] { OnThreads(Meeting(2), body); });
}

TEST(NcclOnDeviceTest, ShortMessagesGoThroughTheDevicesMemory) {
  OnThreads(Meeting(3), [](Joined& rank) -> std::string {
    DeviceCollectives& group = *rank.group->device();
    const int own = rank.group->rank();
    const auto said_of = [](const Result<bool>& done, bool expected) -> std::string {
      if (!done.ok()) {
        return done.error().message();
      }
      return *done == expected ? "" : "not as long as was thought; ";
    };
    std::string said;
    // One-shot, two-shot, and one float too many.
    for (const std::int64_t count : {1000, 200'000, 262'145}) {
      const ops::Memory data = rank.Upload(std::vector<float>(static_cast<std::size_t>(count), 1));
      said += said_of(group.ShortSum(data.floats(), count), count < 262'145);
      const float sum = count < 262'145 ? 3 : 1;
      said += SayUnlessEqual(
          rank.Download(data), std::vector<float>(static_cast<std::size_t>(count), sum), "the sum");
      said += Say(rank.group->Barrier());  // memory is freed when all are through
    }
    const std::vector<std::int64_t> columns = {2, 0, 3};
    const ops::Memory mine = rank.Upload(
        Values(own, 2 * static_cast<std::size_t>(columns[static_cast<std::size_t>(own)])));
    const ops::Memory full = rank.Upload(std::vector<float>(10));
    said += said_of(group.ShortGather({mine.floats(), columns, 2, full.floats()}), true);
    said += SayUnlessEqual(
        rank.Download(full), {0, 1, 2000, 2001, 2002, 2, 3, 2003, 2004, 2005}, "what was gathered");
    return said + Say(rank.group->Barrier());
  });
}

/// What a short sum says that never gets its peer: the call itself where it keeps the thread, else
/// the wait.
std::string SumAlone(Joined& rank, const ops::Memory& data, Code code, const std::string& pattern) {
  const Result<bool> summed = rank.group->device()->ShortSum(data.floats(), 8);
  const Result<> waited = rank.device->Wait();
  return SayUnless(summed.ok() ? waited : Result<>(summed.error()), code, pattern) +
         (waited.ok() ? "the wait succeeds; " : "") +
         (rank.device->Broken() ? "the device is broken; " : "");
}

TEST(NcclOnDeviceTest, AnAbortEndsAShortMessage) {
  const Meeting meeting(2);
  OnThreads(meeting, [&](Joined& rank) -> std::string {
    const ops::Memory data = rank.Upload(Values(0, 8));
    std::string said;
    if (rank.group->rank() == 0) {
      const auto began = Clock::now();
      std::thread other([&] {
        ::poll(nullptr, 0, 100);
        rank.group->Abort();
      });
      said += SumAlone(rank, data, Code::kAborted, "aborted the group");
      other.join();
      said += Clock::now() - began < seconds(3) ? "" : "the abort took its time; ";
    } else {
      said += WaitUntilAPeerIsGone(*rank.group);
    }
    // Calls begin to count anew, on both.
    said += Say(JoinGroup(meeting, 2, rank.group->rank(), &rank));
    const ops::Memory again = rank.Upload(std::vector<float>(8, 2));
    const Result<bool> summed = rank.group->device()->ShortSum(again.floats(), 8);
    said += summed.ok() ? "" : summed.error().message();
    said += SayUnlessEqual(rank.Download(again), std::vector<float>(8, 4), "the next generation");
    return said + Say(rank.group->Barrier());
  });
}

TEST(NcclOnDeviceTest, AnAsynchronousErrorEndsAWait) {
  OnThreads(Meeting(2), [](Joined& rank) -> std::string {
    const ops::Memory data = rank.Upload(Values(0, 8));
    std::string said;
    if (rank.group->rank() == 0) {
      said += Say(rank.group->device()->AllReduceSum(data.floats(), 8));
      std::thread other([] {
        ::poll(nullptr, 0, 50);
        simt::SetNcclError(6);
      });
      said += SayUnless(rank.device->Wait(),
                        Code::kUnavailable,
                        "rank 0 on * EMU-0: all_reduce 1: *(ncclRemoteError)*rank 1 on * EMU-1");
      other.join();
      simt::SetNcclError(0);
    } else {
      said += WaitUntilAPeerIsGone(*rank.group);
    }
    return said;
  });
}

TEST(NcclOnDeviceTest, CallsThatDoNotMatchAreAnError) {
  OnThreads(Meeting(2), [](Joined& rank) -> std::string {
    const ops::Memory data = rank.Upload(Values(0, 16));
    const std::vector<std::size_t> bytes(2, 32);
    const Result<> called = rank.group->rank() == 0
                                ? rank.group->device()->AllReduceSum(data.floats(), 8)
                                : rank.group->device()->AllGather(data.data(), data.data(), bytes);
    // One rank sees it, in the call or later; the other sees it leave.
    return called.ok() && rank.device->Wait().ok() ? "no error" : "";
  });
}

TEST(NcclOnDeviceTest, HostMemoryIsRefused) {
  OnThreads(Meeting(2), [](Joined& rank) -> std::string {
    std::vector<float> host(8);
    const Result<> summed = rank.group->device()->AllReduceSum(host.data(), 8);
    return summed.ok() ? "host memory was taken" : "";
  });
}

#if !defined(__SANITIZE_THREAD__)
// The peer is a process that is killed while this rank waits for it.
TEST(NcclOnDeviceTest, AKilledPeerIsNamedWithinSeconds) {
  const Meeting meeting(2);
  const pid_t peer = ::fork();
  if (peer == 0) {
    ::alarm(60);
    auto rank = MakeRank(meeting, 1);
    if (rank.ok()) {
      const ops::Memory data = rank->Upload(Values(1, 8));
      (void)rank->group->device()->AllReduceSum(data.floats(), 8);
      (void)rank->Download(data);
      (void)rank->group->Barrier();
      ::raise(SIGKILL);
    }
    ::_exit(1);
  }
  auto rank = MakeRank(meeting, 0);
  ASSERT_TRUE(rank.ok()) << rank.error().message();
  const ops::Memory data = rank->Upload(Values(0, 8));
  ASSERT_TRUE(rank->group->device()->AllReduceSum(data.floats(), 8).ok());
  (void)rank->Download(data);
  // Queued before the barrier lets the peer die: afterwards the call itself may see that it is
  // gone.
  ASSERT_TRUE(rank->group->device()->AllReduceSum(data.floats(), 8).ok());
  ASSERT_TRUE(rank->group->Barrier().ok());
  const auto began = Clock::now();
  const Result<> waited = rank->device->Wait();
  EXPECT_LT(Clock::now() - began, seconds(3));
  EXPECT_EQ(SayUnless(waited,
                      Code::kUnavailable,
                      "all_reduce 2; peers: rank 1 on * EMU-1*rank 1 at 127.0.0.1*is gone"),
            "");
  EXPECT_FALSE(rank->device->Broken());
  int status = 0;
  ASSERT_EQ(::waitpid(peer, &status, 0), peer);
  EXPECT_TRUE(WIFSIGNALED(status));
  const std::string segments = "nccl-emu-" + std::to_string(::getpid());
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(segments)) << entry.path();
  }
}

/// Of the emulated device 0, in whole regions of what ranks share.
std::size_t MegabytesInUse() {
  std::size_t free = 0;
  std::size_t total = 0;
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return (total - free) >> 20U;
}

// What a generation leaves may still be read by a peer that has not heard of its end; whoever has
// joined a later one reads it no more.
TEST(NcclOnDeviceTest, MemoryThatAPeerMayReadOutlivesItsGeneration) {
  const Meeting meeting(2);
  constexpr int kGenerations = 4;
  const pid_t peer = ::fork();
  if (peer == 0) {
    ::alarm(60);
    auto rank = MakeRank(meeting, 1);
    bool well = rank.ok();
    for (int next = 2; well && next <= kGenerations; ++next) {
      well = JoinGroup(meeting, static_cast<std::uint64_t>(next), 1, &*rank).ok();
    }
    ::_exit(well && rank->group->Barrier().ok() ? 0 : 1);
  }
  auto device = ops::MakeDevice("cuda-emu:0", 1, {});
  ASSERT_TRUE(device.ok()) << device.error().message();
  Joined rank;
  rank.device = *std::move(device);
  const std::size_t nothing = MegabytesInUse();
  ASSERT_EQ(Say(JoinGroup(meeting, 1, 0, &rank)), "");
  const std::size_t one = MegabytesInUse();
  EXPECT_GE(one, nothing + 4);
  LeaveGroup(&rank);
  EXPECT_EQ(MegabytesInUse(), one) << "the peer is still in the first generation";
  for (std::uint64_t next = 2; next <= kGenerations; ++next) {
    // Every second time as a worker does it, who keeps the last group until it is in the next.
    std::unique_ptr<Communicator> last;
    if (next % 2 == 0) {
      rank.device->queue()->SetGuard(nullptr);
      last = std::move(rank.group);
    }
    ASSERT_EQ(Say(JoinGroup(meeting, next, 0, &rank)), "");
    last.reset();
    EXPECT_EQ(MegabytesInUse(), one) << "generation " << next;
  }
  EXPECT_EQ(Say(rank.group->Barrier()), "");
  int status = 0;
  ASSERT_EQ(::waitpid(peer, &status, 0), peer);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// As above, through memory that the two processes open from each other.
TEST(NcclOnDeviceTest, APeerThatIsKilledEndsAShortMessage) {
  const Meeting meeting(2);
  const pid_t peer = ::fork();
  if (peer == 0) {
    ::alarm(60);
    auto rank = MakeRank(meeting, 1);
    if (rank.ok()) {
      const ops::Memory data = rank->Upload(Values(1, 8));
      (void)rank->group->device()->ShortSum(data.floats(), 8);
      (void)rank->Download(data);
      (void)rank->group->Barrier();
      ::raise(SIGKILL);
    }
    ::_exit(1);
  }
  auto rank = MakeRank(meeting, 0);
  ASSERT_TRUE(rank.ok()) << rank.error().message();
  const ops::Memory data = rank->Upload(Values(0, 8));
  const Result<bool> summed = rank->group->device()->ShortSum(data.floats(), 8);
  ASSERT_TRUE(summed.ok()) << summed.error().message();
  ASSERT_TRUE(*summed) << "the processes do not reach each other's memory";
  std::vector<float> expected = Values(1, 8);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] += static_cast<float>(i);
  }
  EXPECT_EQ(rank->Download(data), expected);
  ASSERT_TRUE(rank->group->Barrier().ok());
  const auto began = Clock::now();
  EXPECT_EQ(SumAlone(*rank, data, Code::kUnavailable, "peers: rank 1 on * EMU-1*is gone"), "");
  EXPECT_LT(Clock::now() - began, seconds(3));
  int status = 0;
  ASSERT_EQ(::waitpid(peer, &status, 0), peer);
  EXPECT_TRUE(WIFSIGNALED(status));
}
#endif

}  // namespace
}  // namespace inferd::comm
