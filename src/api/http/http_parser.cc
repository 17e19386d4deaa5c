// SPDX-License-Identifier: Apache-2.0
#include "api/http/http_parser.h"

#include "api/core/asker.h"
#include "api/core/limits.h"
#include "api/core/request_span.h"
#include "api/core/token_char.h"
#include "api/http/chunk_scanner.h"

#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace inferd::api {
namespace http = boost::beast::http;
namespace {

constexpr int kTooLong = 413;

/// host[:port] and nothing else: a name, an IPv4 address or a bracketed IPv6 address.
bool IsHostPort(std::string_view host) {
  if (host.empty() || host.size() > 300) {
    return false;
  }
  std::size_t end = 0;
  if (host[0] == '[') {
    end = host.find(']');
    if (end == std::string_view::npos ||
        host.substr(1, end - 1).find_first_not_of("0123456789abcdefABCDEF:.") !=
            std::string_view::npos) {
      return false;
    }
    ++end;
  } else {
    while (end < host.size() && (std::isalnum(static_cast<unsigned char>(host[end])) != 0 ||
                                 host[end] == '.' || host[end] == '-' || host[end] == '_')) {
      ++end;
    }
    if (end == 0) {
      return false;
    }
  }
  const std::string_view port = host.substr(end);
  return port.empty() || (port[0] == ':' && port.size() <= 6 &&
                          port.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

std::string Text(boost::beast::string_view view) { return {view.data(), view.size()}; }

/// The text behind "Bearer "; empty when the scheme is another one.
std::string BearerKey(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (!boost::beast::iequals(
          boost::beast::string_view(authorization.data(),
                                    std::min(authorization.size(), kScheme.size())),
          boost::beast::string_view(kScheme.data(), kScheme.size()))) {
    return {};
  }
  authorization.remove_prefix(kScheme.size());
  while (authorization.starts_with(' ')) {
    authorization.remove_prefix(1);
  }
  return std::string(authorization);
}

using Message = http::request<http::string_body>;

/// Those that say who asks. kInvalidArgument when that is not clear.
Result<> ReadAsker(const Message& message, HttpRequest* head) {
  for (const char* const name : kAskerHeaders) {
    if (message.count(name) > 1) {
      return RepeatedHeader(name);
    }
  }
  head->key = BearerKey(Text(message[http::field::authorization]));
  for (const char* const name : {"X-Api-Key", "Api-Key"}) {
    if (head->key.empty()) {
      head->key = Text(message[name]);
    }
  }
  std::array<std::optional<std::string_view>, kTenantHeaders.size()> tenants;
  for (std::size_t i = 0; i < tenants.size(); ++i) {
    if (const auto found = message.find(kTenantHeaders[i]); found != message.end()) {
      tenants[i] = {found->value().data(), found->value().size()};
    }
  }
  head->tenant = AgreedTenant(tenants);
  head->tenant_weight = Text(message[kWeightHeader]);
  head->objective = Text(message[kObjectiveHeader]);
  return {};
}

/// The other fields that handlers and the dispatcher look at, beside what frames the request.
void ReadFields(const Message& message, HttpRequest* head) {
  head->session = Text(message["X-Session-Id"]);
  if (head->session.size() > limits::kSessionIdBytes ||
      !std::all_of(
          head->session.begin(), head->session.end(), [](char c) { return c > ' ' && c <= '~'; })) {
    head->session.clear();
  }
  head->content_type = Text(message[http::field::content_type]);
  head->origin = Text(message[http::field::origin]);
  head->preflight_headers = Text(message[http::field::access_control_request_headers]);
  head->load_metrics = Text(message["endpoint-load-metrics-format"]);
  head->traceparent = Text(message["traceparent"]);
  if (!IsTraceparent(head->traceparent)) {
    head->traceparent.clear();
  }
  head->request_id = Text(message["X-Request-Id"]);
  if (head->request_id.size() > limits::kRequestIdBytes ||
      !std::all_of(head->request_id.begin(), head->request_id.end(), IsTokenChar)) {
    head->request_id.clear();
  }
}

}  // namespace

// ---- HeadScanner

HeadScanner::State HeadScanner::Bad(int status, std::string_view reason) {
  status_ = status;
  reason_ = reason;
  return State::kBad;
}

HeadScanner::State HeadScanner::Scan(std::string_view head) {
  for (; at_ < head.size(); ++at_) {
    const char c = head[at_];
    if (at_ >= limits::kHeadBytes) {
      return Bad(431, "the request head is longer than 32 KiB");
    }
    if (at_ - line_start_ > limits::kHeadLineBytes) {
      return Bad(431, "a line of the request head is longer than 8 KiB");
    }
    if (at_ > line_start_ && head[at_ - 1] == '\r') {
      if (c != '\n') {
        return Bad(400, "CR without LF in the request head");
      }
      if (at_ - line_start_ == 1) {  // an empty line
        if (lines_ == 0) {
          return Bad(400, "the request begins with an empty line");
        }
        ++at_;
        return State::kDone;
      }
      if (++lines_ > limits::kHeadFields + 1) {
        return Bad(431, "more than 100 header fields");
      }
      line_start_ = at_ + 1;
      continue;
    }
    if (c == '\r') {
      continue;
    }
    const auto u = static_cast<unsigned char>(c);
    if (c == '\n' || u == 0x7f || (u < 0x20 && c != '\t')) {
      return Bad(400, "control character in the request head");
    }
    if (at_ == line_start_ && (c == ' ' || c == '\t')) {
      return Bad(400, "folded line in the request head");
    }
    if (lines_ == 0 && at_ == line_start_ && !IsTokenChar(c)) {
      return Bad(400, "not an HTTP request");
    }
  }
  return State::kMore;
}

// ---- HttpParser

struct HttpParser::Impl {
  http::request_parser<http::string_body> parser;
  HeadScanner scanner;
  ChunkScanner chunks;
  bool scanned = false;
  bool checked = false;
  bool continued = false;
  HttpRequest head;  // filled by CheckHead
  BodyLimits limits;
};

HttpParser::HttpParser(const BodyLimits& limits) : impl_(std::make_unique<Impl>()) {
  impl_->limits = limits;
  impl_->parser.eager(true);
  // Our own scan is the limit of the head; Beast's also covers chunk heads and trailers.
  impl_->parser.header_limit(
      static_cast<std::uint32_t>(limits::kHeadBytes + limits::kTrailerBytes));
  impl_->parser.body_limit(std::max(limits.max_bytes, limits.max_upload_bytes));
}

HttpParser::~HttpParser() = default;

HttpParser::State HttpParser::Bad(int status, std::string reason) {
  status_ = status;
  reason_ = std::move(reason);
  return State::kBad;
}

bool HttpParser::head_done() const { return impl_->checked; }
bool HttpParser::has_upload_place() const { return impl_->head.upload_place != nullptr; }

HttpParser::State HttpParser::Feed(std::string_view input, std::size_t* used) {
  *used = 0;
  auto& parser = impl_->parser;
  if (!impl_->scanned) {
    switch (impl_->scanner.Scan(input)) {
      case HeadScanner::State::kMore:
        return State::kMore;
      case HeadScanner::State::kBad:
        return Bad(impl_->scanner.status(), std::string(impl_->scanner.reason()));
      case HeadScanner::State::kDone:
        impl_->scanned = true;
    }
    // The head alone first, so that nothing of the body is touched before the head has been judged.
    boost::system::error_code ec;
    *used = parser.put(boost::asio::const_buffer(input.data(), impl_->scanner.head_bytes()), ec);
    if (ec && ec != http::error::need_more) {
      if (ec == http::error::body_limit) {
        return Bad(413, "the body is larger than this server takes");
      }
      return Bad(400, "malformed request head: " + ec.message());
    }
    if (!parser.is_header_done()) {
      return Bad(400, "malformed request head");
    }
    impl_->checked = true;
    if (!CheckHead()) {
      return State::kBad;
    }
  }
  while (!parser.is_done()) {
    const std::string_view rest = input.substr(*used);
    if (parser.chunked() && !impl_->chunks.Scan(rest)) {
      return Bad(400, std::string(impl_->chunks.reason()));
    }
    boost::system::error_code ec;
    const std::size_t n = parser.put(boost::asio::const_buffer(rest.data(), rest.size()), ec);
    *used += n;
    impl_->chunks.Advance(n);
    if (ec == http::error::need_more || (!ec && n == 0)) {
      if (rest.size() - n > limits::kTrailerBytes) {
        return Bad(400, "a chunk head or the trailers are longer than 8 KiB");
      }
      return State::kMore;
    }
    if (ec == http::error::body_limit || ec == http::error::buffer_overflow) {
      return Bad(413, "the body is larger than this server takes");
    }
    if (ec) {
      return Bad(400, "malformed request body: " + ec.message());
    }
  }
  return State::kDone;
}

bool HttpParser::CheckHead() {
  const auto& message = impl_->parser.get();
  HttpRequest& head = impl_->head;
  head.method = Text(message.method_string());
  head.host = Text(message[http::field::host]);
  head.version_minor = message.version() == 10 ? 0 : 1;
  head.keep_alive = message.keep_alive();
  head.inference_header_length = Text(message["Inference-Header-Content-Length"]);
  ReadFields(message, &head);
  const auto asker = ReadAsker(message, &head);
  const auto refuse = [this](int status, std::string reason) {
    Bad(status, std::move(reason));
    return false;
  };
  if (message.version() != 11 && message.version() != 10) {
    return refuse(400, "the HTTP version is not 1.0 or 1.1");
  }
  if (!asker.ok()) {
    return refuse(400, asker.error().message());
  }
  const std::size_t hosts = message.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && message.version() == 11)) {
    return refuse(400, "exactly one Host field is needed");
  }
  if (hosts == 1 && !IsHostPort(head.host)) {
    return refuse(400, "Host must be host or host:port");
  }
  const std::size_t codings = message.count(http::field::transfer_encoding);
  const std::size_t lengths = message.count(http::field::content_length);
  if (lengths > 1 || codings > 1 || (lengths > 0 && codings > 0)) {
    return refuse(400, "more than one of Content-Length and Transfer-Encoding");
  }
  const auto length = message[http::field::content_length];
  if (lengths == 1 &&
      (length.empty() || length.size() > 18 ||
       !std::all_of(length.begin(), length.end(), [](char c) { return c >= '0' && c <= '9'; }))) {
    return refuse(400, "Content-Length must be one number");
  }
  if (codings == 1 &&
      (message.version() < 11 ||
       !boost::beast::iequals(message[http::field::transfer_encoding], "chunked"))) {
    return refuse(400, "Transfer-Encoding must be exactly chunked");
  }
  if (lengths == 0 && codings == 0 && head.method != "GET" && head.method != "HEAD" &&
      head.method != "OPTIONS" && head.method != "DELETE") {
    return refuse(411, "a request with a body needs Content-Length or Transfer-Encoding: chunked");
  }
  const auto encoding = message[http::field::content_encoding];
  if (!encoding.empty() && !boost::beast::iequals(encoding, "identity")) {
    return refuse(415, "Content-Encoding is not supported; send the body uncompressed");
  }
  if (message.count(http::field::expect) != 0 &&
      !boost::beast::iequals(message[http::field::expect], "100-continue")) {
    return refuse(417, "the only expectation this server meets is 100-continue");
  }
  std::string target = Text(message.target());
  if (target.starts_with("http://") || target.starts_with("https://")) {
    const std::size_t path = target.find('/', target.find("://") + 3);
    target = path == std::string::npos ? "/" : target.substr(path);
  } else if (target != "*" && !target.starts_with('/')) {
    return refuse(400, "the request target must be a path");
  }
  const std::size_t question = target.find('?');
  head.path = target.substr(0, question);
  head.query = question == std::string::npos ? "" : target.substr(question + 1);
  return CheckLength();
}

/// Beast has held the body's length against the limit of uploads, which is the higher one.
bool HttpParser::CheckLength() {
  const BodyLimits& limits = impl_->limits;
  const auto length = impl_->parser.content_length();
  if (limits.max_upload_bytes <= limits.max_bytes || (length && *length <= limits.max_bytes)) {
    return true;
  }
  LongBody answer = limits.gate->AdmitLongBody(impl_->head);
  if (answer.place != nullptr) {
    impl_->head.upload_place = std::move(answer.place);
    return true;
  }
  impl_->parser.body_limit(limits.max_bytes);
  if (length || answer.status != kTooLong) {
    Bad(answer.status, std::move(answer.reason));
    return false;
  }
  return true;
}

bool HttpParser::TakeContinue() {
  const auto& parser = impl_->parser;
  if (impl_->continued || !impl_->checked || parser.is_done() || parser.get().version() < 11) {
    return false;
  }
  impl_->continued = true;
  return boost::beast::iequals(parser.get()[http::field::expect], "100-continue");
}

HttpRequest HttpParser::Take() {
  HttpRequest request = std::move(impl_->head);
  request.body = std::move(impl_->parser.get().body());
  return request;
}

HttpRequest HttpParser::Partial() const {
  HttpRequest request = impl_->head;
  request.keep_alive = false;
  request.upload_place.reset();
  return request;
}

}  // namespace inferd::api
