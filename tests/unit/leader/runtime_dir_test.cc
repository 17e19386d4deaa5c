// SPDX-License-Identifier: Apache-2.0
#include "leader/runtime_dir.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace inferd::leader {
namespace {

namespace fs = std::filesystem;

class RuntimeDirTest : public testing::Test {
 protected:
  RuntimeDirTest() : parent_(testing::TempDir() + "runtime-" + std::to_string(::getpid())) {
    fs::create_directories(parent_);
  }
  ~RuntimeDirTest() override { fs::remove_all(parent_); }

  std::size_t NumFolders() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(parent_), fs::directory_iterator()));
  }

  std::string parent_;
};

TEST_F(RuntimeDirTest, IsPrivateAndRemovedWithTheObject) {
  {
    const auto made = RuntimeDir::Make(parent_);
    ASSERT_TRUE(made.ok());
    struct stat status = {};
    ASSERT_EQ(::stat(made->path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700U);
    std::ofstream(made->socket_path()) << "x";
  }
  EXPECT_EQ(NumFolders(), 0U);
}

TEST_F(RuntimeDirTest, FoldersOfKilledLeadersAreRemovedAndLivingOnesKept) {
  const auto living = RuntimeDir::Make(parent_);
  ASSERT_TRUE(living.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    const auto made = RuntimeDir::Make(parent_);
    std::ofstream(made->socket_path()) << "x";
    ::_exit(made.ok() ? 0 : 1);  // as if killed: no destructor
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  fs::create_directories(parent_ + "/inferd-abcdef");  // no lock: perhaps just being made
  fs::create_directories(parent_ + "/inferd-notes");
  EXPECT_EQ(NumFolders(), 4U);
  const auto next = RuntimeDir::Make(parent_);
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(NumFolders(), 4U) << "the dead one went, the new one came";
  EXPECT_TRUE(fs::exists(living->path()));
  EXPECT_TRUE(fs::exists(parent_ + "/inferd-notes"));
}

TEST_F(RuntimeDirTest, NamesTheFlagWhereNothingCanBeWritten) {
  const auto made = RuntimeDir::Make(parent_ + "/missing");
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message().find("--runtime-dir"), std::string::npos);
}

}  // namespace
}  // namespace inferd::leader
