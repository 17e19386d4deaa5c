// SPDX-License-Identifier: Apache-2.0
// Where a model in an object store is and how it is asked for: names, and the environment.
#include "base/error.h"
#include "store/s3.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <initializer_list>
#include <utility>

namespace inferd::store {
namespace {

constexpr std::string_view kScheme = "s3://";

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string FirstOf(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (std::string value = Environment(name); !value.empty()) {
      return value;
    }
  }
  return {};
}

Result<bool> Flag(const char* name, bool fallback) {
  std::string value = Environment(name);
  std::ranges::transform(
      value, value.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (value.empty()) {
    return fallback;
  }
  if (value == "1" || value == "true") {
    return true;
  }
  if (value == "0" || value == "false") {
    return false;
  }
  return InvalidArgument("{} must be 0, 1, true or false, not '{}'", name, value);
}

Result<std::string> Endpoint() {
  std::string endpoint = FirstOf({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "S3_ENDPOINT"});
  while (endpoint.ends_with('/')) {
    endpoint.pop_back();
  }
  if (!endpoint.empty() && endpoint.find("://") == std::string::npos) {
    INFERD_ASSIGN(const bool https, Flag("S3_USE_HTTPS", true));
    endpoint.insert(0, https ? "https://" : "http://");
  }
  if (!endpoint.empty() && !endpoint.starts_with("http://") && !endpoint.starts_with("https://")) {
    return InvalidArgument("the S3 endpoint {} is neither http:// nor https://", endpoint);
  }
  return endpoint;
}

}  // namespace

bool IsS3Name(std::string_view name) { return name.starts_with(kScheme); }

std::string S3Location::Url(std::string_view key_of_object) const {
  return fmt::format("{}{}{}{}", kScheme, bucket, key_of_object.empty() ? "" : "/", key_of_object);
}

Result<S3Location> ParseS3Location(std::string_view name) {
  if (!IsS3Name(name)) {
    return InvalidArgument("{} does not begin with {}", name, kScheme);
  }
  std::string_view rest = name.substr(kScheme.size());
  const auto slash = rest.find('/');
  S3Location location;
  location.bucket = rest.substr(0, slash);
  std::string_view key = slash == std::string_view::npos ? "" : rest.substr(slash + 1);
  while (key.ends_with('/')) {
    key.remove_suffix(1);
  }
  location.key = key;
  const bool plain = std::ranges::all_of(location.bucket, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_';
  });
  if (location.bucket.size() < 3 || location.bucket.size() > 255 || !plain ||
      location.bucket.front() == '.' || key.starts_with('/') || key.size() > kMaxS3Key) {
    return InvalidArgument("{} is not of the form s3://bucket/prefix", name);
  }
  return location;
}

Result<S3Settings> S3SettingsFromEnvironment() {
  S3Settings settings;
  INFERD_ASSIGN(settings.endpoint, Endpoint());
  if (std::string region = FirstOf({"AWS_REGION", "AWS_DEFAULT_REGION"}); !region.empty()) {
    settings.region = std::move(region);
  }
  INFERD_ASSIGN(const bool anonymous, Flag("AWS_ANONYMOUS_CREDENTIAL", false));
  if (!anonymous) {
    settings.key_id = Environment("AWS_ACCESS_KEY_ID");
    settings.secret = Environment("AWS_SECRET_ACCESS_KEY");
    settings.session_token = Environment("AWS_SESSION_TOKEN");
  }
  if (settings.key_id.empty() != settings.secret.empty()) {
    return InvalidArgument("{} is set, but {} is not",
                           settings.key_id.empty() ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID",
                           settings.key_id.empty() ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY");
  }
  for (const std::string* value : {&settings.region, &settings.key_id, &settings.session_token}) {
    if (value->find_first_of("\r\n: ") != std::string::npos) {
      return InvalidArgument(
          "AWS_REGION, AWS_ACCESS_KEY_ID or AWS_SESSION_TOKEN holds a space, a colon or a line "
          "end");
    }
  }
  settings.ca_bundle = Environment("AWS_CA_BUNDLE");
  INFERD_ASSIGN(settings.verify_tls, Flag("S3_VERIFY_SSL", true));
  INFERD_ASSIGN(settings.virtual_bucket, Flag("S3_USER_VIRTUAL_BUCKET", settings.endpoint.empty()));
  return settings;
}

}  // namespace inferd::store
