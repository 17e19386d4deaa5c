// SPDX-License-Identifier: Apache-2.0
// Files on disk: what survives a restart, what a half-written file becomes, limits and owners.
#include "api/files/file_store.h"

#include "api/files/disk.h"
#include "base/file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace inferd::api {
namespace {

class FileStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "files.XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    options_.folder = folder;
    Reopen();
  }
  void TearDown() override { std::filesystem::remove_all(options_.folder); }

  void Reopen() {
    store_.reset();
    auto opened = FileStore::Open(options_);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    store_ = *std::move(opened);
  }
  static FileRecord From(const std::string& owner, std::int64_t expires_at = 0) {
    FileRecord record;
    record.owner = owner;
    record.filename = "in.jsonl";
    record.purpose = "batch";
    record.created_at = 1000;
    record.expires_at = expires_at;
    return record;
  }
  std::string Add(const std::string& owner, const std::string& content, std::int64_t expiry = 0) {
    auto added = store_->Add(From(owner, expiry), content);
    EXPECT_TRUE(added.ok());
    return added.ok() ? added->id : "";
  }
  std::vector<FileRecord> All(const std::string& owner) const {
    return store_->List(owner, "", {.limit = 100, .ascending = true, .after = ""})->records;
  }
  std::string Content(const FileRecord& file) const {
    const auto data = store_->OpenData(file);
    std::string content(100, ' ');
    content.resize(static_cast<std::size_t>(read(data->get(), content.data(), content.size())));
    return content;
  }
  std::size_t NumOnDisk() const { return NamesIn(options_.folder)->size(); }

  FileStoreOptions options_;
  std::unique_ptr<FileStore> store_;
};

TEST_F(FileStoreTest, KeepsFilesOverARestartInOrder) {
  const std::string first = Add("a", "one");
  const std::string second = Add("a", "two two");
  Reopen();
  const std::string third = Add("a", "3");
  const auto files = All("a");
  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].id, first);
  EXPECT_EQ(files[1].id, second);
  EXPECT_EQ(files[2].id, third);
  EXPECT_EQ(files[1].bytes, 7);
  EXPECT_EQ(files[1].filename, "in.jsonl");
  EXPECT_EQ(Content(files[1]), "two two");
  EXPECT_EQ(store_->use().files, 3);
  EXPECT_EQ(store_->use().bytes, 11);
}

TEST_F(FileStoreTest, OthersSeeNothing) {
  const std::string id = Add("a", "secret");
  EXPECT_EQ(store_->Find("b", id).error().code(), Code::kNotFound);
  EXPECT_EQ(store_->Remove("b", id).error().code(), Code::kNotFound);
  EXPECT_EQ(store_->Hold("b", id, "batch_x").error().code(), Code::kNotFound);
  EXPECT_TRUE(All("b").empty());
  EXPECT_TRUE(store_->Find("a", id).ok());
}

TEST_F(FileStoreTest, AnIdIsLookedUpAndNeverAPath) {
  Add("a", "x");
  for (const char* const id : {"../lock", "", ".", "/etc/passwd", "file-%2e%2e", "file-x.data"}) {
    EXPECT_EQ(store_->Find("a", id).error().code(), Code::kNotFound) << id;
    EXPECT_EQ(store_->Remove("a", id).error().code(), Code::kNotFound) << id;
  }
}

TEST_F(FileStoreTest, HalfWrittenFilesAreRemovedAndDamagedOnesAreLeftAlone) {
  const std::string whole = Add("a", "whole");
  const std::string cut = Add("a", "shortened later");
  const auto path = [&](const std::string& name) { return options_.folder + "/" + name; };
  ASSERT_TRUE(base::WriteFileAtomic(path("file-1.data"), "no record").ok());
  ASSERT_TRUE(base::WriteFileAtomic(path("file-2.json.Ab12Cd"), "{").ok());
  ASSERT_TRUE(base::WriteFileAtomic(path("file-3.json"), "{").ok());
  ASSERT_TRUE(base::WriteFileAtomic(path("notes.txt"), "not ours").ok());
  ASSERT_TRUE(base::WriteFileAtomic(store_->DataPath(cut), "short").ok());
  Reopen();
  EXPECT_EQ(All("a").size(), 1U);
  EXPECT_TRUE(store_->Find("a", whole).ok());
  const auto names = *NamesIn(options_.folder);
  const auto there = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  EXPECT_FALSE(there("file-1.data"));
  EXPECT_FALSE(there("file-2.json.Ab12Cd"));
  EXPECT_TRUE(there("file-3.json"));
  EXPECT_TRUE(there("notes.txt"));
  EXPECT_TRUE(there(cut + ".json"));
}

TEST_F(FileStoreTest, LimitsAreHeldAndRoomComesBack) {
  options_.max_files = 3;
  options_.max_total_bytes = 10;
  Reopen();
  const std::string first = Add("a", "12345");
  Add("a", "123");
  EXPECT_EQ(store_->Add(From("a"), "123").error().code(), Code::kFailedPrecondition);
  Add("a", "12");
  EXPECT_EQ(store_->Add(From("b"), "").error().code(), Code::kFailedPrecondition);
  EXPECT_EQ(NumOnDisk(), 6U);
  ASSERT_TRUE(store_->Remove("a", first).ok());
  EXPECT_EQ(NumOnDisk(), 4U);
  EXPECT_EQ(store_->use().bytes, 5);
  Add("b", "12345");
}

TEST_F(FileStoreTest, AHeldFileStays) {
  const std::string id = Add("a", "x", 2000);
  ASSERT_TRUE(store_->Hold("a", id, "batch_1").ok());
  const auto refused = store_->Remove("a", id);
  EXPECT_EQ(refused.error().code(), Code::kAborted);
  EXPECT_NE(refused.error().message().find("batch_1"), std::string::npos);
  store_->Expire(3000);
  EXPECT_TRUE(store_->Find("a", id).ok());
  store_->Release(id, "batch_1");
  store_->Expire(1999);
  EXPECT_TRUE(store_->Find("a", id).ok());
  store_->Expire(2000);
  EXPECT_FALSE(store_->Find("a", id).ok());
  EXPECT_EQ(NumOnDisk(), 0U);
}

TEST_F(FileStoreTest, AnAdoptedFileIsTakenOnce) {
  const std::string source = options_.folder + "/batch.output";
  ASSERT_TRUE(base::WriteFileAtomic(source, "line\n").ok());
  FileRecord record = From("a");
  record.id = "file-given";
  ASSERT_TRUE(store_->Adopt(record, source).ok());
  ASSERT_TRUE(store_->Adopt(record, source).ok());
  Reopen();
  ASSERT_TRUE(store_->Adopt(record, source).ok());
  EXPECT_EQ(store_->use().files, 1);
  RemoveFile(source);
  EXPECT_EQ(Content(*store_->Find("a", "file-given")), "line\n");
}

TEST_F(FileStoreTest, AFolderHasOneServer) {
  auto first = LockFile(options_.folder + "/lock");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(LockFile(options_.folder + "/lock").error().code(), Code::kFailedPrecondition);
  first->Reset();
  EXPECT_TRUE(LockFile(options_.folder + "/lock").ok());
}

}  // namespace
}  // namespace inferd::api
