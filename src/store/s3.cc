// SPDX-License-Identifier: Apache-2.0
#include "store/s3.h"

#include "base/error.h"
#include "store/xml.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace inferd::store {
namespace {

constexpr std::size_t kMaxObjects = 10'000;
constexpr int kMaxPages = 1000;  // a page may be empty
constexpr std::size_t kMaxPageBytes = 8U << 20U;
// sha256 of nothing: what a request without a body is signed with.
constexpr std::string_view kEmptyBody =
    "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

struct S3Answer {
  std::string code;
  std::string message;
};

// The beginning of an error's body will do; nothing if it is not XML.
S3Answer ParseError(std::string_view xml) {
  S3Answer answer;
  XmlReader reader("an S3 error", xml);
  for (;;) {
    const auto token = reader.Next();
    if (!token.ok() || token->kind == XmlToken::Kind::kEnd) {
      return answer;
    }
    if (token->kind == XmlToken::Kind::kOpen &&
        (token->text == "Code" || token->text == "Message")) {
      std::string* field = token->text == "Code" ? &answer.code : &answer.message;
      auto text = reader.Text();
      if (!text.ok()) {
        return answer;
      }
      *field = *std::move(text);
    }
  }
}

Result<S3Object> ParseContents(std::string_view what, XmlReader* reader) {
  S3Object object;
  object.bytes = -1;
  const std::size_t depth = reader->depth();
  while (reader->depth() >= depth) {
    INFERD_ASSIGN(const XmlToken token, reader->Next());
    if (token.kind != XmlToken::Kind::kOpen) {
      continue;
    }
    INFERD_ASSIGN(std::string text, reader->Text());
    if (token.text == "Key") {
      object.key = std::move(text);
    } else if (token.text == "ETag") {
      object.etag = std::move(text);
    } else if (token.text == "Size") {
      const auto [end, error] =
          std::from_chars(text.data(), text.data() + text.size(), object.bytes);
      if (error != std::errc() || end != text.data() + text.size()) {
        object.bytes = -1;
      }
    }
  }
  if (object.key.empty() || object.key.size() > kMaxS3Key || object.bytes < 0) {
    return InvalidArgument("{} lists an object without a name or a size", what);
  }
  if (object.etag.find_first_of("\r\n") != std::string::npos) {
    return InvalidArgument("{}: the ETag of {} is no header's value", what, object.key);
  }
  return object;
}

}  // namespace

Result<S3Page> ParseS3Page(std::string_view what, std::string_view xml) {
  XmlReader reader(what, xml);
  S3Page page;
  bool listing = false;
  bool truncated = false;
  for (;;) {
    INFERD_ASSIGN(const XmlToken token, reader.Next());
    if (token.kind == XmlToken::Kind::kEnd) {
      break;
    }
    if (token.kind != XmlToken::Kind::kOpen) {
      continue;
    }
    if (reader.depth() == 1) {
      listing = token.text == "ListBucketResult";
    } else if (token.text == "Contents") {
      INFERD_ASSIGN(S3Object object, ParseContents(what, &reader));
      page.objects.push_back(std::move(object));
    } else {
      INFERD_ASSIGN(std::string text, reader.Text());
      if (token.text == "IsTruncated") {
        truncated = text == "true";
      } else if (token.text == "NextContinuationToken") {
        page.next = std::move(text);
      }
    }
  }
  if (!listing || page.objects.size() > kMaxObjects || truncated == page.next.empty()) {
    return InvalidArgument("{} is no listing of a bucket", what);
  }
  return page;
}

S3Client::S3Client(S3Settings settings,
                   S3Location location,
                   S3Patience patience,
                   std::function<bool()> alive)
    : settings_(std::move(settings)),
      location_(std::move(location)),
      patience_(patience),
      alive_(std::move(alive)) {}

HttpRequest S3Client::Request(const std::string& key, const std::string& query) const {
  HttpRequest request;
  std::string host = settings_.endpoint.empty()
                         ? fmt::format("https://s3.{}.amazonaws.com", settings_.region)
                         : settings_.endpoint;
  // A bucket with a dot in its name is not under the certificate of *.host.
  const bool dotted = location_.bucket.find('.') != std::string::npos;
  std::string path;
  if (settings_.virtual_bucket && !(dotted && host.starts_with("https://"))) {
    host.insert(host.find("://") + 3, location_.bucket + ".");
  } else {
    path = "/" + location_.bucket;
  }
  request.url = host + path;
  if (!key.empty() || path.empty()) {
    request.url += "/" + UrlEscaped(key, "/");
  }
  if (!query.empty()) {
    request.url += "?" + query;
  }
  request.headers.emplace_back(kEmptyBody);
  if (!settings_.session_token.empty()) {
    request.headers.push_back("x-amz-security-token: " + settings_.session_token);
  }
  if (!settings_.key_id.empty()) {
    request.signing = HttpSigning{settings_.region, settings_.key_id, settings_.secret};
  }
  request.follow_redirects = false;  // the signature is for this host
  request.ca_bundle = settings_.ca_bundle;
  request.verify_tls = settings_.verify_tls;
  request.connect_timeout_ms = patience_.connect_timeout_ms;
  request.stall_timeout_ms = patience_.stall_timeout_ms;
  request.alive = [this](std::int64_t, std::int64_t) { return Alive(); };
  return request;
}

HttpRequest S3Client::Get(const S3Object& object, std::int64_t offset, std::int64_t length) const {
  HttpRequest request = Request(object.key, "");
  request.offset = offset;
  request.length = length;
  if (!object.etag.empty()) {
    request.headers.push_back("If-Match: " + object.etag);
  }
  return request;
}

Error S3Client::ToError(std::string_view key, const HttpAnswer& answer) const {
  const std::string url = location_.Url(key);
  if (answer.end == HttpAnswer::End::kCancelled) {
    return Cancelled("{}: cancelled; what was loaded is kept for the next time", url);
  }
  if (answer.end != HttpAnswer::End::kStatus) {
    return Unavailable("{}: {}", url, answer.message);
  }
  S3Answer said = ParseError(answer.error_body);
  while (said.message.ends_with('.')) {
    said.message.pop_back();
  }
  const std::string why = fmt::format("{} (status {}){}{}",
                                      said.code.empty() ? "refused" : said.code,
                                      answer.status,
                                      said.message.empty() ? "" : ": ",
                                      said.message);
  const std::string_view region = answer.Header("x-amz-bucket-region");
  if (answer.status / 100 == 3 || said.code == "AuthorizationHeaderMalformed") {
    return InvalidArgument("{}: {}; the bucket is elsewhere: set AWS_REGION{}{}{}",
                           url,
                           why,
                           region.empty() ? "" : " to ",
                           region,
                           settings_.endpoint.empty() ? "" : " or AWS_ENDPOINT_URL");
  }
  if (answer.status == 401 || answer.status == 403) {
    return PermissionDenied(
        "{}: {}; {}",
        url,
        why,
        settings_.key_id.empty()
            ? "asked without a key: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            : "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION, "
              "and what that key may read");
  }
  if (answer.status == 404) {
    return NotFound("{}: {}", url, why);
  }
  if (answer.status == 412) {
    return Aborted("{} was changed in the store while it was read; start again to load the new one",
                   url);
  }
  return answer.MayPass() ? Unavailable("{}: {}", url, why)
                          : FailedPrecondition("{}: {}", url, why);
}

Result<HttpAnswer> S3Client::Ask(HttpConnection* connection,
                                 HttpRequest request,
                                 std::string_view key,
                                 std::string* body) const {
  request.write = [body](std::string_view data) {
    body->append(data);
    return body->size() <= kMaxPageBytes;
  };
  for (int attempt = 1;; ++attempt) {
    body->clear();
    HttpAnswer answer = connection->Perform(request);
    if (answer.end == HttpAnswer::End::kDone) {
      return answer;
    }
    if (answer.end == HttpAnswer::End::kWriteFailed) {
      return ResourceExhausted(
          "{}: the answer has more than {} bytes", location_.Url(key), kMaxPageBytes);
    }
    if (!answer.MayPass() || attempt >= patience_.max_attempts ||
        !PauseBeforeRetry(patience_.first_backoff_ms, attempt, answer.retry_after_ms, alive_)) {
      return ToError(key, answer);
    }
  }
}

Result<std::vector<S3Object>> S3Client::List(HttpConnection* connection,
                                             const std::string& prefix) const {
  std::vector<S3Object> objects;
  std::string next;
  int pages = 0;
  do {
    if (++pages > kMaxPages) {
      return ResourceExhausted(
          "the listing of {} has more than {} pages", location_.Url(prefix), kMaxPages);
    }
    const std::string token =
        next.empty() ? "" : "continuation-token=" + UrlEscaped(next, "") + "&";
    std::string body;
    INFERD_TRY(Ask(connection,
                   Request("", token + "list-type=2&prefix=" + UrlEscaped(prefix, "")),
                   prefix,
                   &body));
    INFERD_ASSIGN(S3Page page, ParseS3Page("the listing of " + location_.Url(prefix), body));
    std::ranges::move(page.objects, std::back_inserter(objects));
    if (objects.size() > kMaxObjects) {
      return ResourceExhausted("{} holds more than {} objects", location_.Url(prefix), kMaxObjects);
    }
    if (!page.next.empty() && page.next == next) {
      return InvalidArgument("the listing of {} does not end", location_.Url(prefix));
    }
    next = std::move(page.next);
  } while (!next.empty());
  return objects;
}

Result<HttpAnswer> S3Client::Head(HttpConnection* connection,
                                  const S3Object& object,
                                  const std::string& query) const {
  HttpRequest request = Request(object.key, query);
  request.head = true;
  request.headers.emplace_back("x-amz-checksum-mode: ENABLED");
  std::string body;
  return Ask(connection, std::move(request), object.key, &body);
}

}  // namespace inferd::store
