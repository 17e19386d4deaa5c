// SPDX-License-Identifier: Apache-2.0
#include "store/model_cache.h"

#include "store/partial_model.h"
#include "store/resolve.h"
#include "unit/store/environment.h"
#include "unit/store/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

namespace inferd::store {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kModel = 64 << 10;

class ModelCacheTest : public testing::Test {
 protected:
  ModelCacheTest() : cache_("INFERD_CACHE", dir_.path()) {}

  std::string Add(const std::string& name) {
    const std::string path = dir_.Write("models/" + name, std::string(kModel, 'x'));
    // Older than everything before.
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(++age_));
    return path;
  }
  std::string AddVersion(const std::string& name, const std::string& version) {
    Add("s3/" + name + "/" + version + "/m.gguf");
    const std::string path = ModelCacheDir() + "/s3/" + name + "/" + version;
    std::filesystem::last_write_time(
        path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(++age_));
    return path;
  }
  static bool There(const std::string& path) { return std::filesystem::exists(path); }

  TempDir dir_;
  SetEnvironment cache_;
  int age_ = 0;
};

TEST_F(ModelCacheTest, ListsModelsAndVersions) {
  Add("b.gguf");
  AddVersion("one", "1");
  Add("org--a/model.safetensors");
  Add("c.gguf.part");
  const auto entries = ListCache();
  ASSERT_EQ(entries.size(), 3U);
  EXPECT_THAT(entries[0].path, HasSubstr("s3/one/1"));
  for (const CacheEntry& entry : entries) {
    EXPECT_GE(entry.bytes, kModel);
    EXPECT_LT(entry.bytes, 2 * kModel);
  }
}

TEST_F(ModelCacheTest, TheLeastRecentlyUsedGoesFirst) {
  const std::string young = Add("young.gguf");
  const std::string middle = AddVersion("x", "1");
  const std::string old = Add("old.gguf");
  const std::string next = ModelCacheDir() + "/s3/x/2";
  ASSERT_TRUE(MakeRoom(next, kModel, 3 * kModel + kModel / 2).ok());
  EXPECT_FALSE(There(old));
  EXPECT_TRUE(There(middle));
  EXPECT_TRUE(There(young));
  ASSERT_TRUE(MakeRoom(next, kModel, 0).ok());  // no bound
  EXPECT_TRUE(There(middle));
  ASSERT_TRUE(MakeRoom(next, kModel, kModel).ok());
  EXPECT_TRUE(ListCache().empty());
}

TEST_F(ModelCacheTest, UseMakesItYoung) {
  const std::string young = Add("young.gguf");
  const std::string old = Add("old.gguf");
  const pid_t user = ::fork();
  if (user == 0) {
    ::_exit(HoldModel(old).ok() ? 0 : 1);  // uses it and ends
  }
  int status = 1;
  ASSERT_EQ(::waitpid(user, &status, 0), user);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(MakeRoom(ModelCacheDir() + "/new.gguf", kModel, 2 * kModel + kModel / 2).ok());
  EXPECT_FALSE(There(young));
  EXPECT_TRUE(There(old));
  EXPECT_FALSE(There(young + ".lease"));
}

TEST_F(ModelCacheTest, NeverWhatIsInUse) {
  const std::string used = AddVersion("x", "1");
  const std::string free = Add("free.gguf");
  ASSERT_TRUE(HoldModel(used + "/m.gguf").ok());
  const std::string next = ModelCacheDir() + "/s3/x/2";
  const auto refused = MakeRoom(next, kModel, kModel + kModel / 2);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr("in use"));
  EXPECT_TRUE(There(used));
  EXPECT_FALSE(There(free));
  // The one that is to be made does not count as another.
  EXPECT_TRUE(MakeRoom(used, kModel, kModel + kModel / 2).ok());
}

// A worker opens what the leader has named by its path.
TEST_F(ModelCacheTest, WhatAWorkerOpensIsInUse) {
  const std::string used = dir_.Write("models/m.gguf", TinyGgufLlama().Encode());
  ASSERT_TRUE(PartialModel::Open(used, "", nullptr).ok());
  EXPECT_FALSE(MakeRoom(ModelCacheDir() + "/new.gguf", 1, 1).ok());
  EXPECT_TRUE(There(used));
}

TEST_F(ModelCacheTest, RefusesWhatIsLargerThanTheBound) {
  const std::string other = Add("other.gguf");
  const auto refused = MakeRoom(ModelCacheDir() + "/new.gguf", 2 * kModel, kModel);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(), HasSubstr("--model-cache-bytes"));
  EXPECT_TRUE(There(other));
}

TEST_F(ModelCacheTest, WhatIsBeingRemovedCannotBeUsed) {
  const std::string path = Add("a.gguf");
  const base::UniqueFd remover(::open((path + ".lease").c_str(), O_RDWR | O_CREAT, 0644));
  ASSERT_EQ(::flock(remover.get(), LOCK_EX), 0);
  EXPECT_EQ(HoldModel(path).error().code(), Code::kUnavailable);
  // Somebody else has it is the only reason to refuse.
  const std::string other = Add("b.gguf");
  std::filesystem::create_directory(other + ".lease");
  EXPECT_TRUE(HoldModel(other).ok());
  // Not of the cache: nothing to hold.
  EXPECT_TRUE(HoldModel("/etc/hostname").ok());
  EXPECT_TRUE(HoldModel(ModelCacheDir() + "/../x").ok());
  EXPECT_TRUE(HoldModel(ModelCacheDir()).ok());
}

}  // namespace
}  // namespace inferd::store
