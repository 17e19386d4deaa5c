// SPDX-License-Identifier: Apache-2.0
// Who may use NCCL, and how its groups end. The library is one of this test's, whose answers are
// set; the emulated one runs in tests/unit/model/nccl_test.cc.
#include "comm/nccl.h"

#include "base/error.h"
#include "comm/nccl_api.h"
#include "unit/comm/spawn.h"

#include <array>
#include <map>
#include <utility>

namespace inferd::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::atomic<int> g_version{22703};
std::atomic<int> g_aborts{0};
std::atomic<NcclResult> g_init{NcclResult::kSuccess};
std::atomic<NcclResult> g_async{NcclResult::kSuccess};

NcclResult Version(int* version) {
  *version = g_version;
  return NcclResult::kSuccess;
}
NcclResult UniqueId(NcclUniqueId* id) {
  *id = {};
  return NcclResult::kSuccess;
}
NcclResult Init(NcclComm* comm, int, NcclUniqueId, int rank, NcclConfig* config) {
  static std::array<char, 8> handles;
  *comm = reinterpret_cast<NcclComm>(&handles[static_cast<std::size_t>(rank)]);
  return config->blocking == 0 ? g_init.load() : NcclResult::kInvalidArgument;
}
NcclResult AsyncError(NcclComm, NcclResult* result) {
  *result = g_async;
  return NcclResult::kSuccess;
}
NcclResult Abort(NcclComm) {
  ++g_aborts;
  return NcclResult::kSuccess;
}
NcclResult GroupStart() { return NcclResult::kSuccess; }
NcclResult GroupEnd() { return NcclResult::kSuccess; }
NcclResult AllReduce(const void*, void*, std::size_t, int, int, NcclComm, void*) {
  return NcclResult::kSuccess;
}
NcclResult AllGather(const void*, void*, std::size_t, int, NcclComm, void*) {
  return NcclResult::kSuccess;
}
NcclResult SendBytes(const void*, std::size_t, int, int, NcclComm, void*) {
  return NcclResult::kSuccess;
}
NcclResult RecvBytes(void*, std::size_t, int, int, NcclComm, void*) { return NcclResult::kSuccess; }
const char* ErrorString(NcclResult) { return "what NCCL calls it"; }
const char* LastError(NcclComm) { return "its last words"; }

void* Find(const char* name) {
  static const std::map<std::string_view, void*> functions = {
      {"ncclGetVersion", reinterpret_cast<void*>(Version)},
      {"ncclGetUniqueId", reinterpret_cast<void*>(UniqueId)},
      {"ncclCommInitRankConfig", reinterpret_cast<void*>(Init)},
      {"ncclCommGetAsyncError", reinterpret_cast<void*>(AsyncError)},
      {"ncclCommAbort", reinterpret_cast<void*>(Abort)},
      {"ncclGroupStart", reinterpret_cast<void*>(GroupStart)},
      {"ncclGroupEnd", reinterpret_cast<void*>(GroupEnd)},
      {"ncclAllReduce", reinterpret_cast<void*>(AllReduce)},
      {"ncclAllGather", reinterpret_cast<void*>(AllGather)},
      {"ncclSend", reinterpret_cast<void*>(SendBytes)},
      {"ncclRecv", reinterpret_cast<void*>(RecvBytes)},
      {"ncclGetErrorString", reinterpret_cast<void*>(ErrorString)},
      {"ncclGetLastError", reinterpret_cast<void*>(LastError)}};
  const auto found = functions.find(name);
  return found != functions.end() ? found->second : nullptr;
}

std::atomic<int> g_peer_aborts{0};

/// Exchanges nothing: messages of up to 4 floats count as sent.
class TestPeerMemory final : public tensor::PeerMemory {
 public:
  Result<bool> Sum(float*, std::int64_t count) override { return count <= 4; }
  Result<bool> Gather(const tensor::ColumnsTask& task) override { return task.rows <= 4; }
  Result<bool> SumThenNorm(const float*, std::int64_t rows, const tensor::ThenNorm&) override {
    return rows <= 4;
  }
  Result<bool> GatherThenNorm(const tensor::ColumnsTask&, const tensor::ThenNorm&) override {
    return Internal("CUDA error 700");
  }
  void Abort() override { ++g_peer_aborts; }
};

/// Memory that may be refused at either end of the exchange.
class TestAccess final : public tensor::PeerAccess {
 public:
  Result<tensor::PeerCard> Offer(std::chrono::milliseconds within) override {
    const auto began = std::chrono::steady_clock::now();
    while (waits_for_an_abort && g_aborts == 0 &&
           std::chrono::steady_clock::now() - began < seconds(10)) {
      ::poll(nullptr, 0, 1);
    }
    if (!comes_to_rest) {
      return DeadlineExceeded("not done after {} ms", within.count());
    }
    if (!offers) {
      return Unavailable("no handle");
    }
    return tensor::PeerCard{std::byte{42}};
  }
  Result<std::unique_ptr<tensor::PeerMemory>> Open(
      int, std::span<const tensor::PeerCard> cards) override {
    if (!opens || cards.size() != 2 || cards[0][0] != std::byte{42} ||
        cards[1][0] != std::byte{42}) {
      return Unavailable("no peer access");
    }
    return std::unique_ptr<tensor::PeerMemory>(std::make_unique<TestPeerMemory>());
  }

  bool comes_to_rest = true;
  bool waits_for_an_abort = false;  // of some rank's communicator
  bool offers = true;
  bool opens = true;
};

/// A device that passes no mark by itself.
class TestQueue final : public tensor::DeviceQueue {
 public:
  explicit TestQueue(std::string id, tensor::FindFunction find = Find)
      : id_(std::move(id)), find_(std::move(find)) {}

  void* stream() const override { return nullptr; }
  Result<> MakeCurrent() override { return {}; }
  const std::string& device_id() const override { return id_; }
  tensor::FindFunction collectives() const override { return find_; }
  std::uint64_t Mark() override { return ++marks; }
  std::uint64_t Passed() override { return passed; }
  void SetGuard(tensor::WaitGuard*) override {}
  void SetWaitLimit(std::chrono::milliseconds) override {}
  tensor::PeerAccess* peers() override { return shares ? &access : nullptr; }
  bool Recording() const override { return recording; }
  void DropRecordings() override { ++drops; }

  TestAccess access;
  bool shares = true;
  bool recording = false;
  std::atomic<int> drops = 0;
  std::uint64_t marks = 0;
  std::uint64_t passed = 0;

 private:
  const std::string id_;
  const tensor::FindFunction find_;
};

class NcclTest : public testing::Test {
 protected:
  void SetUp() override {
    g_version = 22703;
    g_aborts = 0;
    g_init = g_async = NcclResult::kSuccess;
    group_.id = "tp-of-a-test";
    group_.generation = 7;
    group_.size = 2;
    group_.join_deadline = group_.call_deadline = seconds(20);
  }

  /// Both ranks join over a fake host group and do `function`; what each has to say.
  std::vector<std::string> Join(bool required, const RankFunction& function) {
    auto hosts = MakeFakeGroup(2);
    return SpawnThreads(
        2,
        [&](int rank) -> Result<std::unique_ptr<Communicator>> {
          const auto r = static_cast<std::size_t>(rank);
          GroupOptions options = group_;
          options.rank = rank;
          options.generation += r * generation_step_;
          return JoinNccl(options, std::move(hosts[r]), *queues_[r], required);
        },
        function);
  }
  void ExpectAll(const std::vector<std::string>& said, const std::string& pattern) {
    for (const std::string& text : said) {
      EXPECT_TRUE(FoundIn(text, pattern)) << text;
    }
  }

  GroupOptions group_;
  std::uint64_t generation_step_ = 0;
  std::array<std::unique_ptr<TestQueue>, 2> queues_ = {std::make_unique<TestQueue>("GPU-a"),
                                                       std::make_unique<TestQueue>("GPU-b")};
};

const RankFunction kNothing = [](Communicator&) { return std::string("joined"); };

TEST_F(NcclTest, ALibraryThatIsAbsentIsNamedWithWhatToDo) {
  const auto api = LoadNccl("libinferd-has-no-such-nccl.so.2");
  ASSERT_FALSE(api.ok());
  EXPECT_EQ(api.error().code(), Code::kUnavailable);
  EXPECT_TRUE(FoundIn(api.error().message(), "libinferd-has-no-such-nccl.so.2*install libnccl2"));
}

TEST_F(NcclTest, ALibraryThatIsTooOldIsNamedWithItsVersion) {
  g_version = 21003;
  const auto api = FindNccl(Find, "libnccl.so.2");
  ASSERT_FALSE(api.ok());
  EXPECT_EQ(api.error().code(), Code::kUnavailable);
  EXPECT_TRUE(FoundIn(api.error().message(), "libnccl.so.2 is NCCL 2.10.3; 2.18.0 or later"));
  EXPECT_EQ(NcclVersionText(2708), "2.7.8");
}

TEST_F(NcclTest, AFunctionThatIsMissingIsNamed) {
  const auto api = FindNccl(
      [](const char* name) {
        return std::string_view(name) == "ncclCommAbort" ? nullptr : Find(name);
      },
      "libnccl.so.2");
  ASSERT_FALSE(api.ok());
  EXPECT_TRUE(FoundIn(api.error().message(), "libnccl.so.2 has no function ncclCommAbort"));
}

TEST_F(NcclTest, ARankWithoutTheLibraryIsNamedToAllRanks) {
  queues_[1] = std::make_unique<TestQueue>("GPU-b", [](const char*) -> void* { return nullptr; });
  ExpectAll(Join(true, kNothing),
            "group tp-of-a-test cannot use NCCL: rank 1 on * GPU-b: *has no function");
}

TEST_F(NcclTest, WithoutTheLibraryTheGroupStaysOnHostMemory) {
  queues_[1] = std::make_unique<TestQueue>("GPU-b", [](const char*) -> void* { return nullptr; });
  const auto said = Join(false, [](Communicator& group) -> std::string {
    std::array<float, 1> one = {1};
    const Result<> summed = group.AllReduceSum(one);
    return group.device() == nullptr && one[0] == 2 ? "" : "not the host's: " + Say(summed);
  });
  ExpectAll(said, "");
  EXPECT_EQ(said, std::vector<std::string>(2));
}

TEST_F(NcclTest, MigSlicesAreRefusedWithTheReason) {
  queues_[0] = std::make_unique<TestQueue>("MIG-1");
  queues_[1] = std::make_unique<TestQueue>("MIG-2");
  ExpectAll(Join(false, kNothing),
            "join: group tp-of-a-test: rank 0 on * MIG-1 is a MIG slice*no peer access*--dp");
}

TEST_F(NcclTest, TwoRanksOnOneGpuAreNamed) {
  queues_[1] = std::make_unique<TestQueue>("GPU-a");
  ExpectAll(Join(true, kNothing), "ranks 0 and 1 share * GPU-a");
}

TEST_F(NcclTest, AnotherGenerationIsNamed) {
  generation_step_ = 1;
  ExpectAll(Join(false, kNothing), "rank 1 on * GPU-b is of generation 8, rank 0 on * GPU-a of 7");
}

TEST_F(NcclTest, AnInitThatDoesNotEndIsGivenUpAtTheDeadline) {
  g_init = g_async = NcclResult::kInProgress;
  group_.join_deadline = milliseconds(100);
  const auto began = std::chrono::steady_clock::now();
  const auto said = Join(true, kNothing);
  EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(5));
  EXPECT_EQ(g_aborts, 2);
  // One rank is the first to give up; the other may hear of that.
  for (std::size_t r = 0; r < 2; ++r) {
    const std::string other = r == 0 ? "rank 1 on * GPU-b" : "rank 0 on * GPU-a";
    EXPECT_TRUE(FoundIn(said[r], "group tp-of-a-test, rank " + std::to_string(r) + " on"))
        << said[r];
    EXPECT_TRUE(FoundIn(said[r], "ncclCommInitRankConfig*" + other)) << said[r];
  }
  EXPECT_TRUE(FoundIn(said[0] + said[1], "not done after 100 ms*NCCL_SOCKET_IFNAME"));
}

TEST_F(NcclTest, AnInitThatFailsTellsNcclsLastWords) {
  g_init = NcclResult::kSystemError;
  const auto said = Join(true, kNothing);
  EXPECT_TRUE(FoundIn(said[0] + said[1], "what NCCL calls it (ncclSystemError): its last words"))
      << said[0];
}

std::string GatherTwice(Communicator& group) {
  const std::array<std::size_t, 2> bytes = {4, 4};
  std::array<char, 8> data{};
  std::string said = Say(group.device()->AllGather(data.data(), data.data(), bytes));
  return said + Say(group.device()->AllGather(data.data(), data.data(), bytes));
}

TEST_F(NcclTest, AnAsynchronousErrorNamesTheCollectiveThatIsStuck) {
  queues_[0]->passed = queues_[1]->passed = 1;
  const auto said = Join(true, [](Communicator& group) -> std::string {
    if (std::string wrong = GatherTwice(group); !wrong.empty()) {
      return wrong;
    }
    // Both are through before one of them breaks the group.
    const Result<> met = group.Barrier();
    g_async = NcclResult::kRemoteError;
    const Result<> whole = group.device()->Check(milliseconds(1));
    const std::string self = std::to_string(group.rank());
    const std::string peer = std::to_string(1 - group.rank());
    return Say(met) + SayUnless(whole,
                                Code::kUnavailable,
                                "tp-of-a-test, rank " + self +
                                    " on *all_gather 2: what NCCL calls "
                                    "it (ncclRemoteError)*peers: rank " +
                                    peer + " on ");
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
  EXPECT_EQ(g_aborts, 2);
}

TEST_F(NcclTest, AfterAnErrorTheGroupIsBroken) {
  const auto said = Join(true, [](Communicator& group) -> std::string {
    group.Abort();
    const Result<> whole = group.device()->Check(milliseconds(1));
    std::array<char, 4> data{};
    return SayUnless(whole, Code::kAborted, "aborted the group") +
           SayUnless(group.device()->Send(data.data(), 4, 1 - group.rank()),
                     Code::kAborted,
                     "send*aborted the group");
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
  EXPECT_EQ(g_aborts, 2) << "each communicator is aborted once";
}

std::string ShortSumOf(Communicator& group, std::int64_t count, bool expected) {
  std::array<float, 8> data{};
  const Result<bool> done = group.device()->ShortSum(data.data(), count);
  return !done.ok() ? done.error().message() : *done == expected ? "" : "the wrong way; ";
}

TEST_F(NcclTest, ShortMessagesGoThroughMemoryWhereAllRanksReachIt) {
  group_.peer_memory = true;
  const auto said = Join(true, [&](Communicator& group) -> std::string {
    std::string wrong = ShortSumOf(group, 4, true) + ShortSumOf(group, 5, false);
    wrong += queues_[static_cast<std::size_t>(group.rank())]->marks == 1 ? "" : "no mark; ";
    return wrong + Say(group.Barrier());
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
}

TEST_F(NcclTest, NoRankUsesMemoryThatOneDoesNotReach) {
  group_.peer_memory = true;
  const RankFunction by_nccl = [](Communicator& group) { return ShortSumOf(group, 1, false); };
  queues_[1]->access.offers = false;
  EXPECT_EQ(Join(true, by_nccl), std::vector<std::string>(2));
  queues_[1]->access.offers = true;
  queues_[0]->access.opens = false;
  EXPECT_EQ(Join(true, by_nccl), std::vector<std::string>(2));
  queues_[0]->access.opens = true;
  queues_[0]->shares = false;
  EXPECT_EQ(Join(true, by_nccl), std::vector<std::string>(2));
}

// Else the group would be whole, and its first step would find out.
TEST_F(NcclTest, ADeviceThatDoesNotComeToRestDoesNotJoin) {
  group_.peer_memory = true;
  queues_[1]->access.comes_to_rest = false;
  group_.join_deadline = milliseconds(2'000);
  const auto said = Join(true, [](Communicator& group) { return Say(group.Barrier()); });
  EXPECT_TRUE(FoundIn(said[1], "join: group tp-of-a-test, rank 1 on * GPU-b: not done after "))
      << said[1];
  EXPECT_FALSE(said[0].empty()) << "rank 0 goes on without rank 1";
}

// It would wait for peers that may not have come so far, and say that it did.
TEST_F(NcclTest, ADeviceThatDoesNotComeToRestIsToldAtOnce) {
  group_.peer_memory = true;
  queues_[1]->access.comes_to_rest = false;
  queues_[0]->access.waits_for_an_abort = true;
  const auto began = std::chrono::steady_clock::now();
  const auto said = Join(true, kNothing);
  EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(5));
  EXPECT_TRUE(FoundIn(said[1], "join: group tp-of-a-test, rank 1 on * GPU-b: not done after "))
      << said[1];
  EXPECT_FALSE(FoundIn(said[0], "joined")) << said[0];
}

TEST_F(NcclTest, AnAbortEndsShortMessagesAtOnce) {
  group_.peer_memory = true;
  g_peer_aborts = 0;
  const auto said = Join(true, [](Communicator& group) -> std::string {
    group.Abort();
    const Result<bool> summed = group.device()->ShortSum(nullptr, 1);
    return SayUnless(summed.ok() ? Result<>() : Result<>(summed.error()),
                     Code::kAborted,
                     "short sum: rank * aborted the group");
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
  EXPECT_GE(g_peer_aborts, 2);
}

TEST_F(NcclTest, ALaunchThatFailsBreaksTheGroup) {
  group_.peer_memory = true;
  const auto said = Join(true, [](Communicator& group) -> std::string {
    const std::array<std::int64_t, 2> columns = {1, 1};
    const Result<> met = group.Barrier();
    const auto normed = group.device()->ShortGatherThenNorm({nullptr, columns, 1, nullptr}, {});
    return Say(met) +
           SayUnless(normed.ok() ? Result<>() : Result<>(normed.error()),
                     Code::kInternal,
                     "short gather with norm: CUDA error 700") +
           (group.device()->Check(milliseconds(1)).ok() ? "whole; " : "");
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
}

// A recording holds the communicator: it must be gone before that is.
TEST_F(NcclTest, RecordingsAreDroppedBeforeTheirCommunicator) {
  queues_[0]->recording = queues_[1]->recording = true;
  const auto said = Join(true, [&](Communicator& group) -> std::string {
    TestQueue& queue = *queues_[static_cast<std::size_t>(group.rank())];
    std::string wrong = GatherTwice(group) + Say(group.Barrier());
    wrong += queue.marks == 0 ? "" : "a mark in a recording; ";
    group.Abort();
    wrong += group.device()->Check(milliseconds(1)).ok() ? "not aborted; " : "";
    return wrong + (queue.drops == 1 ? "" : "not dropped; ");
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
}

TEST_F(NcclTest, APeerThatIsGoneIsNoticedWhileWaiting) {
  const auto said = Join(true, [](Communicator& group) -> std::string {
    if (group.rank() == 1) {
      return GatherTwice(group);  // and leaves
    }
    std::string wrong = GatherTwice(group);
    const auto began = std::chrono::steady_clock::now();
    Result<> whole;
    while (whole.ok() && std::chrono::steady_clock::now() - began < seconds(10)) {
      whole = group.device()->Check(milliseconds(1));
      ::poll(nullptr, 0, 1);
    }
    return wrong + SayUnless(whole,
                             Code::kUnavailable,
                             "rank 0 on *all_gather 1; peers: rank 1 on *rank 1 is gone");
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
}

TEST_F(NcclTest, AWaitBeyondTheDeadlineIsGivenUp) {
  const auto said = Join(true, [](Communicator& group) -> std::string {
    std::string wrong = GatherTwice(group) + Say(group.Barrier());
    if (group.rank() == 1) {
      return wrong + WaitUntilAPeerIsGone(group);  // rank 0 gives up
    }
    return wrong + SayUnless(group.device()->Check(seconds(21)),
                             Code::kDeadlineExceeded,
                             "all_gather 1: not done after 20000 ms; peers: rank 1 on ");
  });
  EXPECT_EQ(said, std::vector<std::string>(2));
}

}  // namespace
}  // namespace inferd::comm
