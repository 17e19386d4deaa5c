// SPDX-License-Identifier: Apache-2.0
// The S3 protocol without a store: names, environment, listings, errors.
#include "store/s3.h"

#include "store/hub.h"
#include "store/xml.h"
#include "unit/store/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>

namespace inferd::store {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kNames[] = {"AWS_ACCESS_KEY_ID",
                                  "AWS_SECRET_ACCESS_KEY",
                                  "AWS_SESSION_TOKEN",
                                  "AWS_REGION",
                                  "AWS_DEFAULT_REGION",
                                  "AWS_ENDPOINT_URL",
                                  "AWS_ENDPOINT_URL_S3",
                                  "S3_ENDPOINT",
                                  "S3_USE_HTTPS",
                                  "S3_VERIFY_SSL",
                                  "S3_USER_VIRTUAL_BUCKET",
                                  "AWS_CA_BUNDLE",
                                  "AWS_ANONYMOUS_CREDENTIAL"};

/// An environment without any of the names.
class S3SettingsTest : public testing::Test {
 protected:
  S3SettingsTest() {
    for (const char* name : kNames) {
      environment_.emplace_back(name, "");
    }
  }
  void Set(const char* name, const char* value) { environment_.emplace_back(name, value); }
  ~S3SettingsTest() override {
    while (!environment_.empty()) {
      environment_.pop_back();  // the last one first
    }
  }

  std::list<SetEnvironment> environment_;
};

HttpRequest GetOf(const S3Settings& settings, const std::string& name, const S3Object& object) {
  return S3Client(settings, *ParseS3Location(name), {}, nullptr).Get(object, 5, 10);
}

TEST(S3Location, Parses) {
  const auto folder = ParseS3Location("s3://models/llama/8b/");
  ASSERT_TRUE(folder.ok());
  EXPECT_EQ(folder->bucket, "models");
  EXPECT_EQ(folder->key, "llama/8b");
  EXPECT_EQ(folder->Url(), "s3://models/llama/8b");
  EXPECT_EQ(ParseS3Location("s3://models")->Url(), "s3://models");
  EXPECT_EQ(ParseS3Location("s3://models//")->key, "");
  for (const char* bad : {"s3://",
                          "s3:///key",
                          "s3://a/b",
                          "s3://mod els/x",
                          "s3://models?x/y",
                          "s3://..%2f/x",
                          "s3://models//x",
                          "S3://models/x",
                          "s3://host:1234/x",
                          "s3://user@models/x"}) {
    EXPECT_FALSE(ParseS3Location(bad).ok()) << bad;
  }
}

TEST_F(S3SettingsTest, AmazonByDefault) {
  Set("AWS_DEFAULT_REGION", "eu-central-1");
  Set("AWS_ACCESS_KEY_ID", "id");
  Set("AWS_SECRET_ACCESS_KEY", "secret");
  Set("AWS_SESSION_TOKEN", "token");
  const auto settings = S3SettingsFromEnvironment();
  ASSERT_TRUE(settings.ok());
  HttpRequest request = GetOf(*settings, "s3://models/a", {"a/b c+\xC3\xA4", 100, "\"e\""});
  EXPECT_EQ(request.url, "https://models.s3.eu-central-1.amazonaws.com/a/b%20c%2B%C3%A4");
  EXPECT_EQ(request.signing->region, "eu-central-1");
  EXPECT_THAT(request.headers, testing::Contains("If-Match: \"e\""));
  EXPECT_THAT(request.headers, testing::Contains("x-amz-security-token: token"));
  EXPECT_FALSE(request.follow_redirects);
  // AWS_REGION wins; a dot would not be under the certificate.
  Set("AWS_REGION", "us-west-2");
  request = GetOf(*S3SettingsFromEnvironment(), "s3://my.models/a", {"a", 1, ""});
  EXPECT_EQ(request.url, "https://s3.us-west-2.amazonaws.com/my.models/a");
}

TEST_F(S3SettingsTest, AnEndpointAsKServeSetsIt) {
  Set("S3_ENDPOINT", "store:9000");
  Set("S3_USE_HTTPS", "0");
  Set("S3_VERIFY_SSL", "false");
  Set("AWS_CA_BUNDLE", "/ca.pem");
  HttpRequest request = GetOf(*S3SettingsFromEnvironment(), "s3://models/a", {"a", 1, ""});
  EXPECT_EQ(request.url, "http://store:9000/models/a");
  EXPECT_FALSE(request.verify_tls);
  EXPECT_EQ(request.ca_bundle, "/ca.pem");
  EXPECT_FALSE(request.signing);
  Set("S3_USER_VIRTUAL_BUCKET", "true");
  EXPECT_EQ(GetOf(*S3SettingsFromEnvironment(), "s3://models/a", {"a", 1, ""}).url,
            "http://models.store:9000/a");
  Set("AWS_ENDPOINT_URL", "https://one/");
  EXPECT_EQ(S3SettingsFromEnvironment()->endpoint, "https://one");
  Set("AWS_ENDPOINT_URL_S3", "https://two");
  EXPECT_EQ(S3SettingsFromEnvironment()->endpoint, "https://two");
}

TEST_F(S3SettingsTest, RefusesHalves) {
  Set("AWS_ACCESS_KEY_ID", "id");
  EXPECT_THAT(S3SettingsFromEnvironment().error().message(), HasSubstr("AWS_SECRET_ACCESS_KEY"));
  Set("AWS_ANONYMOUS_CREDENTIAL", "true");
  ASSERT_TRUE(S3SettingsFromEnvironment().ok());
  EXPECT_EQ(S3SettingsFromEnvironment()->key_id, "");
  Set("S3_VERIFY_SSL", "maybe");
  EXPECT_THAT(S3SettingsFromEnvironment().error().message(), HasSubstr("S3_VERIFY_SSL"));
  Set("S3_VERIFY_SSL", "");
  Set("AWS_ENDPOINT_URL", "ftp://x");
  EXPECT_THAT(S3SettingsFromEnvironment().error().message(), HasSubstr("ftp://x"));
}

TEST_F(S3SettingsTest, ErrorsNameWhatToSet) {
  const auto error = [](const S3Settings& settings, int status, std::string body) {
    HttpAnswer answer;
    answer.end = HttpAnswer::End::kStatus;
    answer.status = status;
    answer.error_body = std::move(body);
    answer.headers["x-amz-bucket-region"] = "eu-west-1";
    return S3Client(settings, *ParseS3Location("s3://models/a"), {}, nullptr)
        .ToError("a/b", answer);
  };
  const std::string denied =
      "<Error><Code>AccessDenied</Code><Message>No &lt;way&gt;.</Message></Error>";
  Error none = error({}, 403, denied);
  EXPECT_EQ(none.code(), Code::kPermissionDenied);
  EXPECT_THAT(none.message(), HasSubstr("s3://models/a/b: AccessDenied (status 403): No <way>; "));
  EXPECT_THAT(none.message(), HasSubstr("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
  S3Settings keyed;
  keyed.key_id = "id";
  keyed.secret = "secret";
  EXPECT_THAT(error(keyed, 403, "").message(), HasSubstr("check AWS_ACCESS_KEY_ID"));
  EXPECT_THAT(error(keyed, 403, denied).message(), Not(HasSubstr("secret;")));
  EXPECT_THAT(error(keyed, 301, "").message(), HasSubstr("set AWS_REGION to eu-west-1"));
  EXPECT_EQ(error(keyed, 404, "<html").code(), Code::kNotFound);
  EXPECT_EQ(error(keyed, 412, "").code(), Code::kAborted);
  EXPECT_EQ(error(keyed, 503, "").code(), Code::kUnavailable);
}

TEST(S3Page, ParsesAListing) {
  const auto page = ParseS3Page(
      "x",
      "\xEF\xBB\xBF<?xml version=\"1.0\"?>\n<!-- --><ListBucketResult xmlns=\"http://x\">\n"
      "<Name>m</Name><Empty/><IsTruncated>true</IsTruncated><Contents><Key>a&amp;b&#xE4;</Key>"
      "<ETag>&#34;1f&quot;</ETag><Size>5000000000</Size><Owner><Key>no</Key></Owner></Contents>"
      "<s3:Contents><s3:Key><![CDATA[c<d]]></s3:Key><s3:Size>0</s3:Size></s3:Contents>"
      "<CommonPrefixes><Prefix>z/</Prefix></CommonPrefixes>"
      "<NextContinuationToken>t=1</NextContinuationToken></ListBucketResult>\n");
  ASSERT_TRUE(page.ok()) << page.error().message();
  ASSERT_EQ(page->objects.size(), 2U);
  EXPECT_EQ(page->objects[0].key, "a&b\xC3\xA4");
  EXPECT_EQ(page->objects[0].etag, "\"1f\"");
  EXPECT_EQ(page->objects[0].bytes, 5'000'000'000);
  EXPECT_EQ(page->objects[1].key, "c<d");
  EXPECT_EQ(page->next, "t=1");
}

std::string Listing(const std::string& inside) {
  return "<ListBucketResult>" + inside + "</ListBucketResult>";
}

TEST(S3Page, RefusesHostileAnswers) {
  std::string deep;
  for (int i = 0; i < 100; ++i) {
    deep += "<a>";
  }
  for (const std::string& bad :
       {std::string("<html><body>hello</body></html>"),
        std::string(""),
        std::string("{}"),
        std::string("<!DOCTYPE x [<!ENTITY a \"aaaa\">]><ListBucketResult/>"),
        Listing("<Contents><Key>&a;</Key><Size>1</Size></Contents>"),
        Listing("<Contents><Key>a</Key></Contents>"),
        Listing("<Contents><Size>1</Size></Contents>"),
        Listing("<Contents><Key>a</Key><Size>-1</Size></Contents>"),
        Listing("<Contents><Key>a</Key><Size>1e3</Size></Contents>"),
        Listing("<Contents><Key>a</Key><Size>99999999999999999999</Size></Contents>"),
        Listing("<Contents><Key>" + std::string(2000, 'a') + "</Key><Size>1</Size></Contents>"),
        Listing("<Contents><Key>a</Key><Size>1</Size><ETag>x&#13;&#10;Evil: 1</ETag></Contents>"),
        Listing("<IsTruncated>true</IsTruncated>"),
        Listing("<NextContinuationToken>x</NextContinuationToken>"),
        Listing("&#0;"),
        Listing("&#xD800;"),
        Listing("&#x110000;"),
        Listing("<Contents><Key>a</Size></Contents>"),
        Listing("</Contents>"),
        Listing("<![CDATA[x"),
        Listing("<!-- x"),
        Listing(deep),
        std::string("<ListBucketResult><Contents>"),
        std::string("<ListBucketResult"),
        std::string("<ListBucketResult/>x"),
        std::string("</a>"),
        std::string("<>")}) {
    EXPECT_FALSE(ParseS3Page("x", bad).ok()) << bad;
  }
  EXPECT_TRUE(ParseS3Page("x", "<ListBucketResult/>").ok());
}

TEST(S3Page, EveryPrefixOfAListingIsRefused) {
  const std::string whole =
      Listing("<Contents><Key>a&amp;b</Key><ETag>&#34;1&#34;</ETag><Size>5</Size></Contents>");
  ASSERT_TRUE(ParseS3Page("x", whole).ok());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(ParseS3Page("x", std::string_view(whole).substr(0, size)).ok()) << size;
  }
}

TEST(SafeNames, AreOfTheModelsFolder) {
  for (const char* const name : {"config.json", "additional_chat_templates/tool.jinja"}) {
    EXPECT_TRUE(IsSafeName(name)) << name;
  }
  for (const char* const name :
       {"", "/etc", "/", "..", ".hidden", "a/b", "additional_chat_templates/", "../x", "a//b"}) {
    EXPECT_FALSE(IsSafeName(name)) << name;
  }
}

}  // namespace
}  // namespace inferd::store
