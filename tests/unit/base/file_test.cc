// SPDX-License-Identifier: Apache-2.0
#include "base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace inferd::base {
namespace {

using testing::HasSubstr;

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "inferd-base-XXXXXX").string();
    dir_ = ::mkdtemp(pattern.data());
  }
  ~FileTest() override { std::filesystem::remove_all(dir_); }
  std::string Path(const std::string& name) const { return dir_ + "/" + name; }

  std::string dir_;
};

TEST_F(FileTest, WritesAndReadsBack) {
  const std::string content("a\0b\n", 4);
  ASSERT_TRUE(WriteFileAtomic(Path("a"), content).ok());
  EXPECT_EQ(*ReadFile(Path("a"), 4), content);
  ASSERT_TRUE(WriteFileAtomic(Path("a"), "new").ok());
  EXPECT_EQ(*ReadFile(Path("a"), 100), "new");
  // No temporary file is left behind.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1);
}

TEST_F(FileTest, RefusesWhatIsTooLargeAbsentOrNoFile) {
  ASSERT_TRUE(WriteFileAtomic(Path("a"), "12345").ok());
  const auto large = ReadFile(Path("a"), 4);
  ASSERT_FALSE(large.ok());
  EXPECT_THAT(large.error().message(), HasSubstr("5 bytes, more than the 4 allowed"));
  EXPECT_EQ(ReadFile(Path("none"), 10).error().code(), Code::kNotFound);
  EXPECT_EQ(ReadFile(dir_, 10).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(MappedFile::Open(Path("none")).error().code(), Code::kNotFound);
  EXPECT_EQ(MappedFile::Open(dir_).error().code(), Code::kInvalidArgument);
  EXPECT_FALSE(WriteFileAtomic(Path("no/such/folder"), "x").ok());
}

TEST_F(FileTest, MapsAndKeepsTheBytesWhenMoved) {
  ASSERT_TRUE(WriteFileAtomic(Path("a"), "hello").ok());
  auto mapped = MappedFile::Open(Path("a"));
  ASSERT_TRUE(mapped.ok());
  const std::byte* before = mapped->bytes().data();
  const MappedFile moved = *std::move(mapped);
  EXPECT_EQ(moved.bytes().data(), before);
  EXPECT_EQ(moved.size(), 5U);
  EXPECT_EQ(static_cast<char>(moved.bytes()[4]), 'o');
  moved.WillNeed(0, 5);
  moved.DontNeed(1, 3);
  EXPECT_EQ(static_cast<char>(moved.bytes()[0]), 'h');
}

TEST_F(FileTest, MapsAnEmptyFile) {
  ASSERT_TRUE(WriteFileAtomic(Path("a"), "").ok());
  const auto mapped = MappedFile::Open(Path("a"));
  ASSERT_TRUE(mapped.ok());
  EXPECT_TRUE(mapped->bytes().empty());
}

TEST_F(FileTest, ComputesSha256) {
  ASSERT_TRUE(WriteFileAtomic(Path("a"), "abc").ok());
  EXPECT_EQ(*Sha256OfFile(Path("a")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  ASSERT_TRUE(WriteFileAtomic(Path("a"), "").ok());
  EXPECT_EQ(*Sha256OfFile(Path("a")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256OfFile(Path("none")).error().code(), Code::kNotFound);
}

TEST_F(FileTest, UniqueFdClosesOnce) {
  int pipe_ends[2] = {};
  ASSERT_EQ(::pipe(pipe_ends), 0);
  UniqueFd read_end(pipe_ends[0]);
  {
    UniqueFd write_end(pipe_ends[1]);
    UniqueFd other = std::move(write_end);
    EXPECT_FALSE(write_end.valid());  // NOLINT(bugprone-use-after-move)
    EXPECT_TRUE(other.valid());
  }
  char byte = 0;
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 0);  // the other end is closed
  const int raw = read_end.Release();
  EXPECT_GE(raw, 0);
  EXPECT_NE(::fcntl(raw, F_GETFD), -1);
  ::close(raw);
}

TEST_F(FileTest, CacheDirFollowsTheEnvironment) {
  ::setenv("INFERD_CACHE", "/somewhere", 1);
  EXPECT_EQ(CacheDir(), "/somewhere");
  ::unsetenv("INFERD_CACHE");
  ::setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_EQ(CacheDir(), "/xdg/inferd");
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_THAT(CacheDir(), testing::EndsWith("/.cache/inferd"));
}

}  // namespace
}  // namespace inferd::base
