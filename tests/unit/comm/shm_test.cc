// SPDX-License-Identifier: Apache-2.0
// Joining over shared memory: names, strangers, the dead, and nothing left behind.
#include "comm/shm_segment.h"
#include "unit/comm/spawn.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>

namespace inferd::comm {
namespace {

using std::chrono::milliseconds;

GroupOptions Group(int rank, int size) {
  GroupOptions options;
  options.id = FreshId();
  options.rank = rank;
  options.size = size;
  options.join_deadline = milliseconds(100);
  return options;
}

bool Exists(const GroupOptions& options) {
  return std::filesystem::exists("/dev/shm" + ShmName(options.id, options.generation));
}

TEST(ShmTest, NameDependsOnIdAndGeneration) {
  EXPECT_EQ(ShmName("a", 1), ShmName("a", 1));
  EXPECT_NE(ShmName("a", 1), ShmName("a", 2));
  EXPECT_NE(ShmName("a", 1), ShmName("b", 1));
  EXPECT_EQ(ShmName("../../etc/passwd", 1).rfind('/'), 0U);
}

TEST(ShmTest, OneRankIsAGroup) {
  auto comm = JoinShm(Group(0, 1));
  ASSERT_TRUE(comm.ok()) << comm.error().message();
  std::vector<float> data = {1, 2};
  EXPECT_EQ(Say((*comm)->AllReduceSum(data)), "");
  EXPECT_EQ(data[1], 2);
  std::vector<float> out(2);
  const std::vector<std::size_t> counts = {2};
  EXPECT_EQ(Say((*comm)->AllGather(data, out, counts)), "");
  EXPECT_EQ(out, data);
  EXPECT_EQ(Say((*comm)->Barrier()), "");
}

TEST(ShmTest, RefusesWrongOptions) {
  const auto code = [](GroupOptions options) {
    auto comm = JoinShm(options);
    return comm.ok() ? std::string("ok") : std::string(CodeName(comm.error().code()));
  };
  GroupOptions options = Group(2, 2);
  EXPECT_EQ(code(options), "INVALID_ARGUMENT");
  options = Group(0, 1000);
  EXPECT_EQ(code(options), "INVALID_ARGUMENT");
  options = Group(0, 1);
  options.chunk_bytes = 1;
  EXPECT_EQ(code(options), "INVALID_ARGUMENT");
  options = Group(0, 1);
  options.id.clear();
  EXPECT_EQ(code(options), "INVALID_ARGUMENT");
}

TEST(ShmTest, Rank0NamesWhoNeverCame) {
  const GroupOptions options = Group(0, 2);
  auto comm = JoinShm(options);
  ASSERT_FALSE(comm.ok());
  EXPECT_EQ(comm.error().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(comm.error().message(), testing::HasSubstr("rank 1 is late"));
  EXPECT_FALSE(Exists(options));
}

TEST(ShmTest, OthersNameRank0WhoNeverCame) {
  auto comm = JoinShm(Group(1, 2));
  ASSERT_FALSE(comm.ok());
  EXPECT_EQ(comm.error().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(comm.error().message(), testing::HasSubstr("rank 0 is late"));
}

TEST(ShmTest, NothingIsLeftWhileAGroupLives) {
  SpawnOptions options;
  options.backend = Backend::kShmThreads;
  options.size = 3;
  options.id = FreshId();
  const std::string path = "/dev/shm" + ShmName(options.id, kSpawnGeneration);
  SpawnAndExpect(options, [&](Communicator& comm) {
    const std::string said = Say(comm.Barrier());
    return said + (::access(path.c_str(), F_OK) != 0 ? "" : "its name is left in /dev/shm");
  });
}

TEST(ShmTest, SegmentIsPrivate) {
  GroupOptions options = Group(0, 2);
  options.join_deadline = milliseconds(2000);
  std::thread rank0([&] { EXPECT_TRUE(JoinShm(options).ok()); });
  const std::string path = "/dev/shm" + ShmName(options.id, options.generation);
  struct stat info = {};
  for (int ms = 0; ms < 1000 && ::stat(path.c_str(), &info) != 0; ++ms) {
    ::poll(nullptr, 0, 1);
  }
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  GroupOptions other = options;
  other.rank = 1;
  EXPECT_TRUE(JoinShm(other).ok());
  rank0.join();
}

TEST(ShmTest, StaleSegmentOfADeadGroupDoesNotBlock) {
  GroupOptions options = Group(0, 2);
  // A first rank 0 dies while it waits: the name stays behind.
  const pid_t pid = ::fork();
  if (pid == 0) {
    options.join_deadline = milliseconds(20'000);
    ::alarm(30);
    const auto comm = JoinShm(options);
    ::_exit(comm.ok() ? 0 : 1);
  }
  for (int ms = 0; ms < 5000 && !Exists(options); ++ms) {
    ::poll(nullptr, 0, 1);
  }
  ASSERT_TRUE(Exists(options));
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  ASSERT_TRUE(Exists(options));
  options.join_deadline = milliseconds(5000);
  // Rank 1 comes first and must not take the dead group for its own.
  std::thread rank1([options]() mutable {
    options.rank = 1;
    auto comm = JoinShm(options);
    ASSERT_TRUE(comm.ok()) << comm.error().message();
    EXPECT_EQ(Say((*comm)->Barrier()), "");
  });
  ::poll(nullptr, 0, 20);
  auto comm = JoinShm(options);
  EXPECT_TRUE(comm.ok()) << comm.error().message();
  if (comm.ok()) {
    EXPECT_EQ(Say((*comm)->Barrier()), "");
  }
  rank1.join();
  EXPECT_FALSE(Exists(options));
}

TEST(ShmTest, RankThatSeesRank0DieRemovesTheName) {
  GroupOptions options = Group(0, 3);
  options.join_deadline = milliseconds(20'000);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(30);
    const auto comm = JoinShm(options);
    ::_exit(comm.ok() ? 0 : 1);
  }
  for (int ms = 0; ms < 5000 && !Exists(options); ++ms) {
    ::poll(nullptr, 0, 1);
  }
  std::thread rank1([options]() mutable {
    options.rank = 1;
    auto comm = JoinShm(options);
    ASSERT_FALSE(comm.ok());
    EXPECT_EQ(comm.error().code(), Code::kUnavailable) << comm.error().message();
    EXPECT_THAT(comm.error().message(), testing::HasSubstr("rank 0 is gone"));
  });
  ::poll(nullptr, 0, 50);
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  rank1.join();
  EXPECT_FALSE(Exists(options));
}

TEST(ShmTest, SecondRank0IsRefused) {
  GroupOptions options = Group(0, 2);
  options.join_deadline = milliseconds(300);
  std::thread first([&] { EXPECT_FALSE(JoinShm(options).ok()); });
  for (int ms = 0; ms < 5000 && !Exists(options); ++ms) {
    ::poll(nullptr, 0, 1);
  }
  auto second = JoinShm(options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), Code::kAlreadyExists);
  first.join();
}

TEST(ShmTest, DifferingOptionsAreRefused) {
  GroupOptions options = Group(0, 2);
  options.join_deadline = milliseconds(500);
  std::thread rank0([&] { EXPECT_FALSE(JoinShm(options).ok()); });
  GroupOptions other = options;
  other.rank = 1;
  other.chunk_bytes = 8192;
  auto comm = JoinShm(other);
  ASSERT_FALSE(comm.ok());
  EXPECT_EQ(comm.error().code(), Code::kInvalidArgument);
  rank0.join();
}

TEST(ShmTest, GroupsOfManyRanks) {
  SpawnOptions options;
  options.backend = Backend::kShmThreads;
  options.size = 16;
  SpawnAndExpect(options, [](Communicator& comm) {
    std::vector<float> data(40'000, static_cast<float>(comm.rank()));
    std::string said = Say(comm.AllReduceSum(data));
    return data[39'999] == 120 ? said : said + "the sum is wrong";
  });
}

}  // namespace
}  // namespace inferd::comm
