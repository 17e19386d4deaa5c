// SPDX-License-Identifier: Apache-2.0
// Downloads from a hub on loopback that drops, stalls, lies and refuses.
#include "store/fetch.h"

#include "store/download.h"
#include "store/hub.h"
#include "store/model.h"
#include "store/resolve.h"
#include "unit/store/environment.h"
#include "unit/store/file_server.h"
#include "unit/store/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace inferd::store {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string Content(std::size_t size) {
  std::string content(size, '\0');
  std::uint32_t state = 1;
  for (char& c : content) {
    state = state * 1664525 + 1013904223;
    c = static_cast<char>(state >> 24);
  }
  return content;
}

class DownloadTest : public testing::Test {
 protected:
  DownloadTest() : content_(Content(300'000)) {
    hub_.Serve("/file", content_);
    sha256_ = *base::Sha256OfFile(dir_.Write("reference", content_));
    request_.url = hub_.endpoint() + "/file";
    request_.path = dir_.path() + "/out";
    request_.bytes = static_cast<std::int64_t>(content_.size());
    request_.sha256 = sha256_;
    request_.max_attempts = 3;
    request_.first_backoff_ms = 1;
  }
  bool HasPart() const { return std::filesystem::exists(request_.path + ".part"); }
  bool HasFile() const { return std::filesystem::exists(request_.path); }

  TempDir dir_;
  FakeHub hub_;
  std::string content_;
  std::string sha256_;
  DownloadRequest request_;
};

TEST_F(DownloadTest, LoadsAndVerifies) {
  std::int64_t last = 0;
  bool verified = false;
  request_.progress = [&](std::int64_t done, std::int64_t total, bool verifying) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, request_.bytes);
    last = done;
    verified = verified || verifying;
    return true;
  };
  const auto result = Download(request_);
  ASSERT_TRUE(result.ok()) << result.error().message();
  EXPECT_EQ(ReadAll(request_.path), content_);
  EXPECT_FALSE(HasPart());
  EXPECT_EQ(last, request_.bytes);
  EXPECT_TRUE(verified);
}

TEST_F(DownloadTest, ResumesAfterDrops) {
  hub_.FailNext({{.drop_after = 100'000}, {.drop_after = 50'000}, {.status = 503}});
  const auto result = Download(request_);
  ASSERT_TRUE(result.ok()) << result.error().message();
  EXPECT_EQ(ReadAll(request_.path), content_);
  const auto requests = hub_.Requests();
  ASSERT_EQ(requests.size(), 4U);
  EXPECT_THAT(requests[0], Not(HasSubstr("Range:")));
  EXPECT_THAT(requests[1], HasSubstr("Range: bytes=100000-"));
  EXPECT_THAT(requests[3], HasSubstr("Range: bytes=150000-"));
}

TEST_F(DownloadTest, ResumesWhatAnEarlierRunLeft) {
  dir_.Write("out.part", content_.substr(0, 123'456));
  ASSERT_TRUE(Download(request_).ok());
  EXPECT_EQ(ReadAll(request_.path), content_);
  EXPECT_THAT(hub_.Requests().front(), HasSubstr("Range: bytes=123456-"));
}

TEST_F(DownloadTest, StartsAgainWhereRangesAreIgnored) {
  dir_.Write("out.part", content_.substr(0, 1000));
  hub_.IgnoreRanges();
  const auto result = Download(request_);
  ASSERT_TRUE(result.ok()) << result.error().message();
  EXPECT_EQ(ReadAll(request_.path), content_);
}

TEST_F(DownloadTest, StartsAgainWhenThePartIsNotOfThisFile) {
  dir_.Write("out.part", std::string(5000, 'x'));
  const auto result = Download(request_);
  ASSERT_TRUE(result.ok()) << result.error().message();
  EXPECT_EQ(ReadAll(request_.path), content_);
  // Longer than the whole file: not even asked to resume.
  std::filesystem::remove(request_.path);
  dir_.Write("out.part", std::string(400'000, 'x'));
  ASSERT_TRUE(Download(request_).ok());
  EXPECT_EQ(ReadAll(request_.path), content_);
}

TEST_F(DownloadTest, BreaksOffStallsAndResumes) {
  request_.stall_timeout_ms = 200;
  hub_.FailNext({{.drop_after = 70'000, .stall = true}});
  const auto result = Download(request_);
  ASSERT_TRUE(result.ok()) << result.error().message();
  EXPECT_EQ(ReadAll(request_.path), content_);
}

TEST_F(DownloadTest, RefusesAWrongChecksumAndDeletesThePart) {
  request_.sha256 = std::string(64, '0');
  const auto result = Download(request_);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kDataLoss);
  EXPECT_THAT(result.error().message(), AllOf(HasSubstr(sha256_), HasSubstr(std::string(64, '0'))));
  EXPECT_FALSE(HasPart());
  EXPECT_FALSE(HasFile());
  EXPECT_EQ(hub_.Requests().size(), 2U);  // once more from the start, then given up
}

TEST_F(DownloadTest, RefusesAFileOfAnotherLength) {
  request_.bytes = 299'999;
  auto result = Download(request_);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kDataLoss);
  request_.bytes = 300'001;
  result = Download(request_);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(result.error().message(), AllOf(HasSubstr("300000"), HasSubstr("300001")));
  EXPECT_FALSE(HasFile());
}

TEST_F(DownloadTest, GivesUpAfterFruitlessAttempts) {
  hub_.FailNext({{.status = 500}, {.status = 502}, {.status = 503}, {.status = 500}});
  const auto result = Download(request_);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kUnavailable);
  EXPECT_EQ(hub_.Requests().size(), 3U);
}

TEST_F(DownloadTest, DoesNotRetryWhatWillNotPass) {
  request_.url = hub_.endpoint() + "/absent";
  auto result = Download(request_);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kNotFound);
  EXPECT_EQ(hub_.Requests().size(), 1U);
  hub_.FailNext({{.status = 401}});
  result = Download(request_);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kPermissionDenied);
  EXPECT_THAT(result.error().message(), HasSubstr("HF_TOKEN"));
  EXPECT_EQ(hub_.Requests().size(), 2U);
}

TEST_F(DownloadTest, KeepsThePartWhenCancelled) {
  request_.progress = [](std::int64_t done, std::int64_t, bool) { return done < 1; };
  const auto result = Download(request_);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kCancelled);
  EXPECT_TRUE(HasPart());
  EXPECT_FALSE(HasFile());
}

TEST_F(DownloadTest, RefusesASecondWriter) {
  bool refused = false;
  request_.progress = [&](std::int64_t, std::int64_t, bool) {
    if (!refused) {
      DownloadRequest second = request_;
      second.progress = nullptr;
      const auto result = Download(second);
      refused = !result.ok() && result.error().code() == Code::kAlreadyExists;
    }
    return true;
  };
  ASSERT_TRUE(Download(request_).ok());
  EXPECT_TRUE(refused);
}

TEST_F(DownloadTest, RefusesMoreThanTheDiskHolds) {
  request_.bytes = std::int64_t{1} << 55;
  const auto result = Download(request_);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kResourceExhausted);
  EXPECT_TRUE(hub_.Requests().empty());
}

TEST_F(DownloadTest, RefusesOtherProtocols) {
  request_.url = "file:///etc/hostname";
  EXPECT_FALSE(Download(request_).ok());
  EXPECT_FALSE(HasFile());
}

// --- Whole models. ---

class FetchTest : public testing::Test {
 protected:
  FetchTest()
      : cache_("INFERD_CACHE", dir_.path()),
        catalog_("INFERD_CATALOG", ""),
        home_("HF_HOME", dir_.path() + "/none") {
    options_.endpoint = hub_.endpoint();
    options_.token = "secret";
    options_.max_attempts = 2;
    options_.first_backoff_ms = 1;
  }
  void ServeRepository(const std::string& repo, const std::map<std::string, std::string>& files) {
    std::string siblings;
    for (const auto& [name, content] : files) {
      siblings += (siblings.empty() ? "" : ",") + std::string("{\"rfilename\":\"") + name +
                  "\",\"size\":" + std::to_string(content.size()) + "}";
      hub_.Serve("/" + repo + "/resolve/main/" + name, content);
    }
    hub_.Serve("/api/models/" + repo + "/revision/main?blobs=true",
               "{\"siblings\":[" + siblings + "]}");
  }

  TempDir dir_;
  FakeHub hub_;
  SetEnvironment cache_;
  SetEnvironment catalog_;
  SetEnvironment home_;
  FetchOptions options_;
};

TEST_F(FetchTest, FetchesARepositoryThatOpens) {
  ServeRepository("org/tiny",
                  {{"config.json", TinyHfConfig()},
                   {"model.safetensors", F32File(TinyHfTensors())},
                   {"pytorch_model.bin", "not wanted"},
                   {"original/consolidated.00.pth", "not wanted"},
                   {"consolidated.safetensors", "not wanted"},
                   {"README.md", "not wanted"}});
  EXPECT_THAT(ResolveModel("org/tiny").error().message(), HasSubstr("inferd fetch org/tiny"));
  std::set<std::string> seen;
  options_.progress = [&](const FetchProgress& progress) {
    seen.insert(progress.file);
    EXPECT_EQ(progress.num_files, 2);
    return true;
  };
  const auto path = Fetch("org/tiny", options_);
  ASSERT_TRUE(path.ok()) << path.error().message();
  EXPECT_EQ(*path, dir_.path() + "/models/org--tiny");
  EXPECT_EQ(*ResolveModel("org/tiny"), *path);
  EXPECT_TRUE(OpenModel(*path).ok());
  EXPECT_THAT(seen, testing::ElementsAre("config.json", "model.safetensors"));
  for (const std::string& request : hub_.Requests()) {
    EXPECT_THAT(request, HasSubstr("Authorization: Bearer secret"));
  }
  // Nothing is loaded twice.
  const std::size_t before = hub_.Requests().size();
  EXPECT_TRUE(Fetch("org/tiny", options_).ok());
  EXPECT_EQ(hub_.Requests().size(), before);
}

TEST_F(FetchTest, AFolderCountsOnlyWhenComplete) {
  ServeRepository(
      "org/tiny",
      {{"config.json", TinyHfConfig()}, {"model.safetensors", F32File(TinyHfTensors())}});
  hub_.FailNext({{}, {}, {.status = 404}});
  EXPECT_FALSE(Fetch("org/tiny", options_).ok());
  EXPECT_TRUE(std::filesystem::exists(dir_.path() + "/models/org--tiny/config.json"));
  EXPECT_FALSE(ResolveModel("org/tiny").ok());
  const auto path = Fetch("org/tiny", options_);
  ASSERT_TRUE(path.ok()) << path.error().message();
  std::filesystem::remove(*path + "/model.safetensors");
  EXPECT_FALSE(ResolveModel("org/tiny").ok());
}

TEST_F(FetchTest, ChoosesAmongGgufFiles) {
  const std::string model = TinyGgufLlama().Encode();
  ServeRepository("org/many",
                  {{"m-q4_k_m.gguf", model}, {"m-q8_0.gguf", model}, {"mmproj-m.gguf", "x"}});
  EXPECT_THAT(Fetch("org/many", options_).error().message(),
              AllOf(HasSubstr("m-q4_k_m.gguf"), HasSubstr("m-q8_0.gguf")));
  const auto path = Fetch("org/many:Q4_K_M", options_);
  ASSERT_TRUE(path.ok()) << path.error().message();
  EXPECT_TRUE(OpenModel(*path).ok());
  EXPECT_EQ(*ResolveModel("org/many:Q4_K_M"), *path);
  EXPECT_THAT(Fetch("org/many:Q2_K", options_).error().message(), HasSubstr("Q2_K"));
}

TEST_F(FetchTest, TheSchemeMayNameARevision) {
  const std::string model = TinyGgufLlama().Encode();
  hub_.Serve("/api/models/org/many/revision/refs/pr/1?blobs=true",
             R"({"siblings":[{"rfilename":"a.gguf"},{"rfilename":"b.gguf"}]})");
  hub_.Serve("/org/many/resolve/refs/pr/1/b.gguf", model);
  const std::string name = "hf://org/many@refs/pr/1:b.gguf";
  const auto path = Fetch(name, options_);
  ASSERT_TRUE(path.ok()) << path.error().message();
  EXPECT_EQ(*path, dir_.path() + "/models/org--many@refs@pr@1--b.gguf");
  EXPECT_EQ(*ResolveModel(name), *path);
  // Not what has no revision, or another one.
  EXPECT_FALSE(ResolveModel("org/many:b.gguf").ok());
  EXPECT_FALSE(ResolveModel("hf://org/many@v2:b.gguf").ok());
  for (const char* bad : {"hf://", "hf://org", "hf://org/a@", "hf://org/a@../x", "hf://org/a/b"}) {
    EXPECT_THAT(Fetch(bad, options_).error().message(), HasSubstr("hf://org/name[@revision]"));
    EXPECT_EQ(ResolveModel(bad).error().code(), Code::kInvalidArgument);
  }
}

TEST_F(FetchTest, FindsARevisionInTheHubsOwnCache) {
  const std::string hub = dir_.path() + "/hf";
  const SetEnvironment home("HF_HOME", hub);
  dir_.Write("hf/hub/models--org--x/refs/v1.0", "abc123\n");
  dir_.Write("hf/hub/models--org--x/snapshots/abc123/config.json", "{}");
  const std::string snapshot = hub + "/hub/models--org--x/snapshots/abc123";
  EXPECT_EQ(*ResolveModel("hf://org/x@v1.0"), snapshot);
  EXPECT_EQ(*ResolveModel("org/x@abc123"), snapshot);
  EXPECT_FALSE(ResolveModel("hf://org/x").ok());
}

TEST_F(FetchTest, FetchesACatalogFileAndChecksIt) {
  const std::string model = TinyGgufLlama().Encode();
  const std::string sha256 = *base::Sha256OfFile(dir_.Write("reference", model));
  const auto write_catalog = [&](const std::string& sum) {
    return dir_.Write("catalog.yaml",
                      "models:\n  mine:\n    aliases: [my-model]\n    sources:\n      - kind: hf\n "
                      "       repo: org/gone\n"
                      "        files: [gone.gguf]\n      - kind: hf\n        repo: org/mine\n      "
                      "  files:\n          - name: mine.gguf\n"
                      "            sha256: " +
                          sum + "\n");
  };
  hub_.Serve("/org/mine/resolve/main/mine.gguf", model);
  const SetEnvironment catalog("INFERD_CATALOG", write_catalog(std::string(64, 'a')));
  EXPECT_EQ(Fetch("mine", options_).error().code(), Code::kDataLoss);
  EXPECT_FALSE(ResolveModel("mine").ok());
  write_catalog(sha256);
  const auto path = Fetch("My-Model", options_);
  ASSERT_TRUE(path.ok()) << path.error().message();
  EXPECT_EQ(*path, dir_.path() + "/models/mine.gguf");
  EXPECT_EQ(*ResolveModel("mine"), *path);
}

TEST_F(FetchTest, DoesNothingOffline) {
  const SetEnvironment offline("HF_HUB_OFFLINE", "1");
  EXPECT_EQ(Fetch("org/tiny", options_).error().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(hub_.Requests().empty());
}

TEST_F(FetchTest, RefusesUnknownNames) {
  EXPECT_THAT(Fetch("qwen2.5-coder-05b", options_).error().message(),
              HasSubstr("did you mean qwen2.5-coder-0.5b?"));
  EXPECT_EQ(Fetch("no such thing", options_).error().code(), Code::kNotFound);
}

TEST(ChooseHubFiles, KeepsToTheFolder) {
  const auto files = ChooseHubFiles(
      "org/x",
      R"({"siblings":[{"rfilename":"config.json"},{"rfilename":"../evil.safetensors"},
{"rfilename":"/etc/x.safetensors"},{"rfilename":"a.safetensors","size":5,"lfs":{"sha256":"ab"}},
{"rfilename":"additional_chat_templates/rag.jinja"},{"rfilename":"onnx/model.safetensors"}]})",
      "");
  ASSERT_TRUE(files.ok()) << files.error().message();
  ASSERT_EQ(files->size(), 3U);
  EXPECT_EQ((*files)[1].name, "a.safetensors");
  EXPECT_EQ((*files)[1].bytes, 5);
  EXPECT_EQ((*files)[1].sha256, "ab");
  EXPECT_EQ((*files)[2].name, "additional_chat_templates/rag.jinja");
}

TEST(ChooseHubFiles, RefusesNonsense) {
  EXPECT_FALSE(ChooseHubFiles("org/x", "<html>", "").ok());
  EXPECT_FALSE(ChooseHubFiles("org/x", R"({"siblings":7})", "").ok());
  EXPECT_EQ(
      ChooseHubFiles("org/x", R"({"siblings":[{"rfilename":"README.md"}]})", "").error().code(),
      Code::kNotFound);
}

}  // namespace
}  // namespace inferd::store
