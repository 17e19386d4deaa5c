// SPDX-License-Identifier: Apache-2.0
// Models from a store on loopback that drops, lies, changes and refuses. tests/engines/test_s3.py
// has a real store.
#include "store/s3_fetch.h"

#include "base/digest.h"
#include "store/fetch.h"
#include "store/model.h"
#include "store/object_verifier.h"
#include "store/resolve.h"
#include "unit/store/environment.h"
#include "unit/store/file_server.h"
#include "unit/store/files.h"
#include "unit/store/s3_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <span>

namespace inferd::store {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class S3FetchTest : public S3StoreTest {};

TEST_F(S3FetchTest, FetchesAFolderThatOpens) {
  ServeTiny();
  EXPECT_THAT(ResolveModel("s3://models/tiny").error().message(),
              HasSubstr("inferd fetch s3://models/tiny"));
  const auto path = Fetch("s3://models/tiny/", options_);
  ASSERT_TRUE(path.ok()) << path.error().message();
  EXPECT_TRUE(OpenModel(*path).ok());
  EXPECT_EQ(*ResolveModel("s3://models/tiny"), *path);
  EXPECT_EQ(Gets().size(), 2U);
  for (const std::string& request : store_.Requests()) {
    EXPECT_THAT(request,
                AllOf(HasSubstr("Authorization: AWS4-HMAC-SHA256 Credential=id/"),
                      HasSubstr("/us-east-1/s3/aws4_request"),
                      HasSubstr("x-amz-content-sha256"),
                      ContainsRegex("SignedHeaders=[a-z0-9;-]*x-amz-content-sha256"),
                      Not(HasSubstr("secret"))));
  }
  // The second start only lists.
  const std::size_t before = store_.Requests().size();
  EXPECT_EQ(*Fetch("s3://models/tiny", options_), *path);
  EXPECT_EQ(store_.Requests().size(), before + 1);
}

TEST_F(S3FetchTest, FetchesAFileAndItsFurtherParts) {
  const std::string model = TinyGgufLlama().Encode();
  Serve("a%2Fm.gguf", {{"a/m.gguf", model}, {"a/m.gguf.bak", "not wanted"}});
  const auto path = Fetch("s3://models/a/m.gguf", options_);
  ASSERT_TRUE(path.ok()) << path.error().message();
  EXPECT_TRUE(path->ends_with("/m.gguf"));
  EXPECT_TRUE(OpenModel(*path).ok());
  const S3Location parts = *ParseS3Location("s3://models/a/m-00001-of-00002.gguf");
  const auto files = ChooseS3Files(parts,
                                   {{"a/m-00001-of-00002.gguf", 1, ""},
                                    {"a/m-00002-of-00002.gguf", 1, ""},
                                    {"a/m-x.gguf", 1, ""}});
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(files->size(), 2U);
}

TEST(ChooseS3Files, RefusesWhatABucketShouldNotName) {
  const S3Location part = *ParseS3Location("s3://models/a/m-00001-of-x/e.gguf");
  const auto equal =
      ChooseS3Files(part, {{"a/m-00001-of-x/e.gguf", 1, ""}, {"a/m-00002-of-x/e.gguf", 1, ""}});
  ASSERT_FALSE(equal.ok());
  EXPECT_THAT(equal.error().message(),
              AllOf(HasSubstr("a/m-00001-of-x/e.gguf"), HasSubstr("a/m-00002-of-x/e.gguf")));
  const S3Location folder = *ParseS3Location("s3://models/a");
  EXPECT_EQ(ChooseS3Files(folder, {{"a/m.gguf", 1, ""}, {"a/m.gguf", 1, ""}}).ok(), false);
  EXPECT_EQ(ChooseS3Files(folder, {{"a//m.gguf", 1, ""}}).error().code(), Code::kNotFound);
}

TEST_F(S3FetchTest, NamesWhatIsNotThere) {
  Serve("none%2F", {});
  EXPECT_EQ(Fetch("s3://models/none", options_).error().code(), Code::kNotFound);
  Serve("b.gguf", {{"b.gguf.txt", "x"}});
  EXPECT_EQ(Fetch("s3://models/b.gguf", options_).error().code(), Code::kNotFound);
  Serve("two%2F", {{"two/a.gguf", "x"}, {"two/b.gguf", "y"}});
  EXPECT_THAT(Fetch("s3://models/two", options_).error().message(),
              HasSubstr("s3://models/two/a.gguf"));
  EXPECT_THAT(Fetch("s3://", options_).error().message(), HasSubstr("s3://bucket/prefix"));
}

TEST_F(S3FetchTest, GoesOnWhereTheConnectionWasCut) {
  ServeTiny();
  store_.FailNext({{}, {.drop_after = -1}, {.drop_after = 100}, {.status = 503}});
  const auto path = Fetch("s3://models/tiny", options_);
  ASSERT_TRUE(path.ok()) << path.error().message();
  EXPECT_EQ(ReadAll(*path + "/model.safetensors"), tensors_);
  const auto gets = Gets();
  ASSERT_EQ(gets.size(), 4U);
  EXPECT_THAT(gets[2], HasSubstr("Range: bytes=100-"));
  EXPECT_THAT(gets[3], HasSubstr("Range: bytes=100-"));
}

TEST_F(S3FetchTest, TheNextRunGoesOnToo) {
  ServeTiny();
  store_.FailNext({{}, {}, {.drop_after = 100}, {.status = 404}});
  EXPECT_EQ(Fetch("s3://models/tiny", options_).error().code(), Code::kNotFound);
  EXPECT_FALSE(ResolveModel("s3://models/tiny").ok());
  ASSERT_TRUE(Fetch("s3://models/tiny", options_).ok());
  const auto gets = Gets();
  EXPECT_THAT(gets.back(), AllOf(HasSubstr("model.safetensors"), HasSubstr("Range: bytes=100-")));
}

TEST_F(S3FetchTest, GivesUpWhenNoByteComes) {
  ServeTiny();
  options_.give_up_ms = 200;
  std::vector<FakeHub::Fault> faults(1000, {.status = 500});
  faults.front() = {};
  store_.FailNext(faults);
  const auto result = Fetch("s3://models/tiny", options_);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kUnavailable);
  EXPECT_THAT(result.error().message(), AllOf(HasSubstr("no byte for 200 ms"), HasSubstr("500")));
}

TEST_F(S3FetchTest, RefusesACorruptObjectByName) {
  ServeTiny();
  std::string other = tensors_;
  other[other.size() / 2] ^= 1;
  store_.Serve("/models/tiny/model.safetensors", other, "ETag: \"" + Md5(tensors_) + "\"\r\n");
  const auto result = Fetch("s3://models/tiny", options_);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kDataLoss);
  EXPECT_THAT(result.error().message(),
              AllOf(HasSubstr("s3://models/tiny/model.safetensors is corrupt"),
                    HasSubstr(Md5(tensors_)),
                    HasSubstr(Md5(other))));
  EXPECT_FALSE(ResolveModel("s3://models/tiny").ok());
  // Mended in the store: nothing of the bad bytes is left.
  ServeTiny();
  EXPECT_TRUE(Fetch("s3://models/tiny", options_).ok());
}

TEST_F(S3FetchTest, ACorruptTransferIsReadOnceMore) {
  Serve("c.gguf", {{"c.gguf", TinyGgufLlama().Encode()}});
  const std::string good = TinyGgufLlama().Encode();
  const std::string etag = "ETag: \"" + Md5(good) + "\"\r\n";
  store_.Serve("/models/c.gguf", std::string(good.size(), 'x'), etag);
  options_.progress = [&](const FetchProgress& progress) {
    if (progress.done_bytes == static_cast<std::int64_t>(good.size())) {
      store_.Serve("/models/c.gguf", good, etag);
    }
    return true;
  };
  const auto path = Fetch("s3://models/c.gguf", options_);
  ASSERT_TRUE(path.ok()) << path.error().message();
  EXPECT_EQ(ReadAll(*path), good);
}

TEST_F(S3FetchTest, PartsAreCheckedToo) {
  std::string content(100, 'a');
  content += std::string(50, 'b');
  const auto raw = [](std::string_view text) {
    auto digest = *base::Digest::Make(base::DigestKind::kMd5);
    digest.Update(std::as_bytes(std::span(text)));
    return digest.Finish();
  };
  const std::string etag =
      "\"" + Md5(raw(content.substr(0, 100)) + raw(content.substr(100))) + "-2\"";
  const auto serve = [&](const std::string& served) {
    store_.Serve("/models/d.gguf", served, "ETag: " + etag + "\r\n");
    store_.Serve("/models/d.gguf?partNumber=1",
                 content.substr(0, 100),
                 "ETag: " + etag + "\r\nx-amz-mp-parts-count: 2\r\n");
    store_.Serve("/models?list-type=2&prefix=d.gguf",
                 "<ListBucketResult><Contents><Key>d.gguf</Key><Size>150</Size><ETag>" + etag +
                     "</ETag></Contents></ListBucketResult>");
  };
  serve(std::string(150, 'a'));
  EXPECT_THAT(Fetch("s3://models/d.gguf", options_).error().message(),
              HasSubstr("s3://models/d.gguf is corrupt: its md5 by parts is"));
  serve(content);
  EXPECT_TRUE(Fetch("s3://models/d.gguf", options_).ok());
}

TEST_F(S3FetchTest, RefusesAnObjectThatChangesMeanwhile) {
  ServeTiny();
  store_.FailNext({{}, {}, {.drop_after = 100}});
  bool changed = false;
  options_.first_backoff_ms = 300;
  options_.progress = [&](const FetchProgress& progress) {
    if (progress.done_bytes > 100 && !changed) {
      changed = true;
      store_.Serve("/models/tiny/model.safetensors", tensors_, "ETag: \"other\"\r\n");
    }
    return true;
  };
  const auto result = Fetch("s3://models/tiny", options_);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kAborted);
  EXPECT_THAT(result.error().message(),
              HasSubstr("s3://models/tiny/model.safetensors was changed in the store"));
}

TEST_F(S3FetchTest, ANewVersionIsAnotherFolder) {
  ServeTiny();
  const auto before = Fetch("s3://models/tiny", options_);
  ASSERT_TRUE(before.ok());
  tensors_ += '\n';  // another object all the same
  ServeTiny();
  const auto after = Fetch("s3://models/tiny", options_);
  ASSERT_TRUE(after.ok()) << after.error().message();
  EXPECT_NE(*before, *after);
  EXPECT_TRUE(std::filesystem::exists(*before + "/model.safetensors"));
  EXPECT_EQ(*ResolveModel("s3://models/tiny"), *after);
}

TEST_F(S3FetchTest, WithoutTheStoreTheCacheServes) {
  ServeTiny();
  const auto path = Fetch("s3://models/tiny", options_);
  ASSERT_TRUE(path.ok());
  store_.FailNext({{.status = 503}, {.status = 503}});
  EXPECT_EQ(*Fetch("s3://models/tiny", options_), *path);
  // A refusal is no outage.
  store_.FailNext({{.status = 403}});
  EXPECT_EQ(Fetch("s3://models/tiny", options_).error().code(), Code::kPermissionDenied);
}

TEST_F(S3FetchTest, ListsPageByPage) {
  const std::string model = TinyGgufLlama().Encode();
  Serve("p%2F", {{"p/m.gguf", model}});
  const std::string more =
      "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>p/a</Key>"
      "<Size>1</Size></Contents><NextContinuationToken>n/1=</NextContinuationToken>"
      "</ListBucketResult>";
  std::string last = "<ListBucketResult><Contents><Key>p/m.gguf</Key><Size>" +
                     std::to_string(model.size()) + "</Size></Contents></ListBucketResult>";
  store_.Serve("/models?list-type=2&prefix=p%2F", more);
  store_.Serve("/models?continuation-token=n%2F1%3D&list-type=2&prefix=p%2F", last);
  EXPECT_TRUE(Fetch("s3://models/p", options_).ok());
  // A store that answers with the same page for ever.
  store_.Serve("/models?continuation-token=n%2F1%3D&list-type=2&prefix=p%2F", more);
  EXPECT_THAT(Fetch("s3://models/p", options_).error().message(), HasSubstr("does not end"));
}

TEST_F(S3FetchTest, RefusesAListingWithoutEnd) {
  const auto page = [](int next) {
    return "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>" +
           std::to_string(next) + "</NextContinuationToken></ListBucketResult>";
  };
  store_.Serve("/models?list-type=2&prefix=p%2F", page(1));
  for (int i = 1; i < 1000; ++i) {
    store_.Serve("/models?continuation-token=" + std::to_string(i) + "&list-type=2&prefix=p%2F",
                 page(i + 1));
  }
  const auto result = Fetch("s3://models/p", options_);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kResourceExhausted);
  EXPECT_THAT(result.error().message(),
              AllOf(HasSubstr("s3://models/p/"), HasSubstr("more than 1000 pages")));
  EXPECT_EQ(store_.Requests().size(), 1000U);
}

TEST_F(S3FetchTest, RefusesAStoreWithoutRanges) {
  ServeTiny();
  store_.IgnoreRanges();
  EXPECT_THAT(Fetch("s3://models/tiny", options_).error().message(),
              HasSubstr("does not serve ranges"));
}

TEST_F(S3FetchTest, StopsWhenAsked) {
  ServeTiny();
  options_.progress = [](const FetchProgress& progress) { return progress.total_bytes == 0; };
  EXPECT_EQ(Fetch("s3://models/tiny", options_).error().code(), Code::kCancelled);
}

TEST_F(S3FetchTest, StopsWhileItVerifies) {
  ServeTiny();
  const S3Client client(*S3SettingsFromEnvironment(), *ParseS3Location("s3://models/tiny"), {}, {});
  const auto part = *PartFile::Open(dir_.path() + "/f", 10, "x");  // no byte of it comes
  const std::vector<RangedRead> reads = {{{"tiny/config.json", 10, ""}, part.get()}};
  ObjectVerifier verifier(client, reads);
  int calls = 0;
  const auto result = verifier.Finish([&] { return ++calls < 3; });
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kCancelled);
  EXPECT_EQ(calls, 3);
}

// The store does not answer what the checksum is.
TEST_F(S3FetchTest, StopsWhileItAsksForAChecksum) {
  const auto busy = *PartFile::Open(dir_.path() + "/f", 10, "x");
  ASSERT_TRUE(busy->Record({0, 10}).ok());
  S3Patience patience;
  patience.first_backoff_ms = 60'000;
  SetEnvironment closed("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
  const S3Client client(
      *S3SettingsFromEnvironment(), *ParseS3Location("s3://models/c.gguf"), patience, {});
  const std::vector<RangedRead> reads = {{{"c.gguf", 10, ""}, busy.get()}};
  ObjectVerifier verifier(client, reads);
  EXPECT_EQ(verifier.Finish([] { return false; }).error().code(), Code::kCancelled);
}

TEST_F(S3FetchTest, ASecondProcessWaitsForTheFirst) {
  ServeTiny();
  int waited = 0;
  bool inside = false;
  options_.progress = [&](const FetchProgress& progress) {
    if (progress.total_bytes > 0 && !inside) {
      inside = true;
      FetchOptions second = options_;
      second.progress = [&](const FetchProgress& p) { return p.total_bytes > 0 || ++waited < 10; };
      EXPECT_EQ(Fetch("s3://models/tiny", second).error().code(), Code::kCancelled);
    }
    return true;
  };
  ASSERT_TRUE(Fetch("s3://models/tiny", options_).ok());
  EXPECT_EQ(waited, 10);
}

}  // namespace
}  // namespace inferd::store
