// SPDX-License-Identifier: Apache-2.0
// Amazon's S3 protocol, read only: where an object is, who asks, what the store answers. Settings
// come from the environment under the names of the AWS SDKs and of KServe. Included by .cc files of
// this room and its tests.
#pragma once

#include "inferd/result.h"
#include "store/http.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::store {

inline constexpr std::size_t kMaxS3Key = 1024;

/// s3://bucket/key, where the key is an object's or what the keys of a folder begin with.
struct S3Location {
  std::string bucket;
  std::string key;  // no slash at its ends; empty: the whole bucket
  std::string Url(std::string_view key_of_object) const;
  std::string Url() const { return Url(key); }
};

bool IsS3Name(std::string_view name);
Result<S3Location> ParseS3Location(std::string_view name);

struct S3Settings {
  std::string endpoint;  // scheme://host[:port]; empty: Amazon's of the region
  std::string region = "us-east-1";
  std::string key_id;  // empty: anonymous
  std::string secret;
  std::string session_token;
  std::string ca_bundle;
  bool verify_tls = true;
  bool virtual_bucket = true;  // bucket.host/key, not host/bucket/key
};

/// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION,
/// AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, S3_ENDPOINT with S3_USE_HTTPS, S3_VERIFY_SSL,
/// S3_USER_VIRTUAL_BUCKET, AWS_CA_BUNDLE, AWS_ANONYMOUS_CREDENTIAL. Refuses half a key.
Result<S3Settings> S3SettingsFromEnvironment();

struct S3Object {
  std::string key;
  std::int64_t bytes = 0;
  std::string etag;  // with its quotes
};

/// One page of ListObjectsV2.
struct S3Page {
  std::vector<S3Object> objects;
  std::string next;  // continuation token; empty: the last page
};
/// Refuses what is no listing, sizes below 0, and more than a page may hold.
Result<S3Page> ParseS3Page(std::string_view what, std::string_view xml);

/// How long to try. Tests make it short.
struct S3Patience {
  std::int64_t connect_timeout_ms = 15'000;
  std::int64_t stall_timeout_ms = 30'000;
  int max_attempts = 5;  // of a listing or head
  std::int64_t first_backoff_ms = 500;
  std::int64_t give_up_ms = 120'000;  // of reading, without a new byte on any connection
};

/// Immutable; safe to use from several threads, each with its own connection.
class S3Client {
 public:
  /// `alive` is called often while something waits, from any thread; false cancels.
  S3Client(S3Settings settings,
           S3Location location,
           S3Patience patience,
           std::function<bool()> alive);

  const S3Location& location() const { return location_; }
  const S3Patience& patience() const { return patience_; }
  const S3Settings& settings() const { return settings_; }
  bool Alive() const { return !alive_ || alive_(); }

  /// Objects whose keys begin with `prefix`, at most 10,000 on at most 1,000 pages; else
  /// ResourceExhausted.
  Result<std::vector<S3Object>> List(HttpConnection* connection, const std::string& prefix) const;
  /// The headers of an object. `query` is escaped and in order.
  Result<HttpAnswer> Head(HttpConnection* connection,
                          const S3Object& object,
                          const std::string& query) const;
  /// To read a range of an object as long as it is still the one that was listed.
  HttpRequest Get(const S3Object& object, std::int64_t offset, std::int64_t length) const;
  /// What an answer that will not pass says, naming the object and the setting to look at.
  Error ToError(std::string_view key, const HttpAnswer& answer) const;

 private:
  HttpRequest Request(const std::string& key, const std::string& query) const;
  Result<HttpAnswer> Ask(HttpConnection* connection,
                         HttpRequest request,
                         std::string_view key,
                         std::string* body) const;

  const S3Settings settings_;
  const S3Location location_;
  const S3Patience patience_;
  const std::function<bool()> alive_;
};

}  // namespace inferd::store
