// SPDX-License-Identifier: Apache-2.0
// Batches without a server: what is refused before it begins, and where a run goes on.
#include "api/batch/offline_batch.h"

#include "base/file.h"
#include "byte_model.h"
#include "fake_service.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <memory>
#include <set>
#include <sstream>
#include <string>

namespace inferd::api {
namespace {

using Json = nlohmann::json;

class OfflineBatchTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = testing::TempDir() + "offline.XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    options_.input = folder_ + "/in.jsonl";
    options_.output = folder_ + "/out.jsonl";
  }
  void TearDown() override {
    service_.Stop();
    batch_.reset();
    std::filesystem::remove_all(folder_);
  }
  static std::string Line(const std::string& id, int max_tokens) {
    return R"({"custom_id":")" + id + R"(","method":"POST","url":"/v1/completions",)" +
           R"("body":{"prompt":"x","max_tokens":)" + std::to_string(max_tokens) + "}}\n";
  }
  void WriteInput(const std::string& text) {
    ASSERT_TRUE(base::WriteFileAtomic(options_.input, text).ok());
  }
  Result<> Open() {
    batch_.reset();
    INFERD_ASSIGN(batch_, OfflineBatch::Open(options_));
    return {};
  }
  Result<OfflineCounts> Run(const std::function<bool()>& stopped = [] { return false; }) {
    return batch_->Run(TestModel(), &service_, 4, stopped, [](const OfflineCounts&) {});
  }
  std::multiset<std::string> Ids(const std::string& path) {
    std::multiset<std::string> ids;
    std::istringstream lines(*base::ReadFile(path, 1 << 20));
    for (std::string line; std::getline(lines, line);) {
      ids.insert(Json::parse(line)["custom_id"].get<std::string>());
    }
    return ids;
  }

  std::string folder_;
  OfflineOptions options_;
  FakeInferenceService service_;
  std::unique_ptr<OfflineBatch> batch_;
};

TEST_F(OfflineBatchTest, AnswersAndErrorsGoToOneFile) {
  WriteInput(Line("a", 20) + Line("b", -1) +
             R"({"custom_id":"c","method":"POST","url":"/v1/embeddings","body":{"input":"x"}})");
  ASSERT_TRUE(Open().ok());
  const auto counts = Run();
  ASSERT_TRUE(counts.ok()) << counts.error().message();
  EXPECT_EQ((*counts).total, 3);
  EXPECT_EQ((*counts).completed, 2);
  EXPECT_EQ((*counts).failed, 1);
  EXPECT_EQ(Ids(options_.output), (std::multiset<std::string>{"a", "b", "c"}));
  EXPECT_FALSE(std::filesystem::exists(options_.output + ".partial"));
}

TEST_F(OfflineBatchTest, RefusesBeforeAnythingIsLoaded) {
  EXPECT_EQ(Open().error().code(), Code::kNotFound);
  WriteInput(Line("a", 1) + "x\n" + Line("a", 1));
  const auto bad = Open();
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.error().message().find("line 2: "), std::string::npos);
  EXPECT_NE(bad.error().message().find("line 3: The custom_id 'a' is there twice"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(options_.output + ".partial"));
  WriteInput(Line("a", 1));
  ASSERT_TRUE(base::WriteFileAtomic(options_.output, "old").ok());
  EXPECT_EQ(Open().error().code(), Code::kAlreadyExists);
  options_.overwrite = true;
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(*base::ReadFile(options_.output, 100), "old") << "until the end";
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Ids(options_.output), (std::multiset<std::string>{"a"}));
}

TEST_F(OfflineBatchTest, AStoppedRunGoesOnWhereItWas) {
  service_.HoldAt(2);
  WriteInput(Line("a", 1) + Line("b", 1) + Line("c", 9) + Line("d", 9));
  ASSERT_TRUE(Open().ok());
  const auto stopped = Run([&] { return batch_->counts().completed == 2; });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code(), Code::kCancelled);
  EXPECT_NE(stopped.error().message().find("2 of 4"), std::string::npos);
  EXPECT_TRUE(service_.WaitRunning(0));
  service_.HoldAt(-1);
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(batch_->counts().completed, 2);
  ASSERT_TRUE(Run().ok());
  EXPECT_EQ(Ids(options_.output), (std::multiset<std::string>{"a", "b", "c", "d"}));
}

TEST_F(OfflineBatchTest, AnswersToOtherRequestsAreNotMixedIn) {
  ASSERT_TRUE(base::WriteFileAtomic(options_.output + ".partial",
                                    "{\"custom_id\":\"z\",\"response\":{\"status_code\":200}}\n")
                  .ok());
  WriteInput(Line("a", 1));
  const auto refused = Open();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
  EXPECT_NE(refused.error().message().find(".partial"), std::string::npos);
}

TEST_F(OfflineBatchTest, OneRunAtATimeWritesAnOutput) {
  WriteInput(Line("a", 1));
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(OfflineBatch::Open(options_).error().code(), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace inferd::api
