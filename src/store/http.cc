// SPDX-License-Identifier: Apache-2.0
#include "store/http.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <random>
#include <utility>

namespace inferd::store {
namespace {

constexpr long kSlowBytesPerSecond = 1024;
constexpr long kMaxRedirects = 10;
constexpr long kReceiveBytes = 256L << 10U;
constexpr std::int64_t kMaxBackoffMs = 30'000;
constexpr std::int64_t kMaxRetryAfterMs = 120'000;
constexpr std::size_t kMaxHeaders = 200;
constexpr std::size_t kMaxErrorBody = 16U << 10U;
constexpr int kOk = 200;
constexpr int kRedirect = 300;

using CurlList = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;

void InitCurlOnce() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
}

// One request on its way.
struct Transfer {
  const HttpRequest& request;
  CURL* curl;
  HttpAnswer answer;
  bool write_failed = false;
  bool range_ignored = false;
  bool cancelled = false;
  bool stalled = false;
  // When `seen` bytes had been received for the first time.
  std::int64_t seen = -1;
  std::chrono::steady_clock::time_point seen_at = {};

  int Status() const {
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    return static_cast<int>(status);
  }
};

bool WantsRange(const HttpRequest& request) { return request.offset > 0 || request.length > 0; }

// By its Content-Range.
bool StartsAt(const HttpAnswer& answer, std::int64_t offset) {
  return answer.Header("content-range").starts_with(fmt::format("bytes {}-", offset));
}

std::size_t OnData(char* data, std::size_t size, std::size_t count, void* user) {
  auto* transfer = static_cast<Transfer*>(user);
  const std::size_t bytes = size * count;
  const int status = transfer->Status();
  if (status >= kRedirect) {
    std::string& body = transfer->answer.error_body;
    body.append(data, std::min(bytes, kMaxErrorBody - body.size()));
    return bytes;
  }
  if (WantsRange(transfer->request) && transfer->answer.received == 0 &&
      (status == kOk || !StartsAt(transfer->answer, transfer->request.offset))) {
    transfer->range_ignored = true;
    return 0;
  }
  if (transfer->request.write && !transfer->request.write({data, bytes})) {
    transfer->write_failed = true;
    return 0;
  }
  transfer->answer.received += static_cast<std::int64_t>(bytes);
  return bytes;
}

std::size_t OnHeader(char* data, std::size_t size, std::size_t count, void* user) {
  auto& headers = static_cast<Transfer*>(user)->answer.headers;
  const std::string_view line(data, size * count);
  const auto colon = line.find(':');
  if (line.starts_with("HTTP/")) {
    headers.clear();  // of the answer before: a redirect, or a 100
  } else if (colon != std::string_view::npos && headers.size() < kMaxHeaders) {
    std::string name(line.substr(0, colon));
    std::ranges::transform(
        name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    std::string_view value = line.substr(colon + 1);
    constexpr std::string_view kSpace = " \t\r\n";
    const auto first = value.find_first_not_of(kSpace);
    value = first == std::string_view::npos
                ? std::string_view()
                : value.substr(first, value.find_last_not_of(kSpace) + 1 - first);
    headers.insert_or_assign(std::move(name), std::string(value));
  }
  return size * count;
}

int OnProgress(void* user,
               curl_off_t total,
               curl_off_t /*down_now*/,
               curl_off_t /*up_total*/,
               curl_off_t /*up_now*/) {
  auto* transfer = static_cast<Transfer*>(user);
  const auto now = std::chrono::steady_clock::now();
  const std::int64_t received = transfer->answer.received;
  if (received != transfer->seen) {
    transfer->seen = received;
    transfer->seen_at = now;
  } else if (now - transfer->seen_at >
             std::chrono::milliseconds(transfer->request.stall_timeout_ms)) {
    transfer->stalled = true;
    return 1;
  }
  if (transfer->request.alive && !transfer->request.alive(received, total)) {
    transfer->cancelled = true;
    return 1;
  }
  return 0;
}

void SetUp(CURL* curl, Transfer* transfer, const CurlList& headers, char* error_text) {
  const HttpRequest& request = transfer->request;
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_NOBODY, request.head ? 1L : 0L);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error_text);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, request.follow_redirects ? 1L : 0L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kMaxRedirects);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "inferd");
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kReceiveBytes);
  if (!request.ca_bundle.empty()) {
    curl_easy_setopt(curl, CURLOPT_CAINFO, request.ca_bundle.c_str());
  }
  if (!request.verify_tls) {
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L);
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L);
  }
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(request.connect_timeout_ms));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kSlowBytesPerSecond);
  curl_easy_setopt(curl,
                   CURLOPT_LOW_SPEED_TIME,
                   static_cast<long>(std::max<std::int64_t>(request.stall_timeout_ms / 1000, 1)));
  if (WantsRange(request)) {
    const std::string last =
        request.length > 0 ? std::to_string(request.offset + request.length - 1) : "";
    curl_easy_setopt(curl, CURLOPT_RANGE, fmt::format("{}-{}", request.offset, last).c_str());
  }
  if (request.signing) {
    curl_easy_setopt(
        curl, CURLOPT_AWS_SIGV4, fmt::format("aws:amz:{}:s3", request.signing->region).c_str());
    curl_easy_setopt(curl, CURLOPT_USERNAME, request.signing->key_id.c_str());
    curl_easy_setopt(curl, CURLOPT_PASSWORD, request.signing->secret.c_str());
  }
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &OnData);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, transfer);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &OnHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &OnProgress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, transfer);
}

bool IsLoss(CURLcode code) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
    case CURLE_SSL_CONNECT_ERROR:
      return true;
    default:
      return false;
  }
}

HttpAnswer::End EndOf(const Transfer& transfer, CURLcode code) {
  using End = HttpAnswer::End;
  if (transfer.cancelled) {
    return End::kCancelled;
  }
  if (transfer.write_failed) {
    return End::kWriteFailed;
  }
  if (transfer.range_ignored) {
    return End::kRangeIgnored;
  }
  if (transfer.stalled) {
    return End::kLost;
  }
  // An error's body need not arrive whole.
  if (transfer.answer.status >= kRedirect) {
    return End::kStatus;
  }
  if (code == CURLE_OK) {
    return End::kDone;
  }
  return IsLoss(code) ? End::kLost : End::kFailed;
}

}  // namespace

struct HttpConnection::Handle {
  std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl{nullptr, &curl_easy_cleanup};
};

std::string_view HttpAnswer::Header(const std::string& lower_case_name) const {
  const auto place = headers.find(lower_case_name);
  return place == headers.end() ? std::string_view() : std::string_view(place->second);
}

bool HttpAnswer::MayPass() const {
  return end == End::kLost ||
         (end == End::kStatus && (status == 408 || status == 429 || status >= 500));
}

HttpConnection::HttpConnection() : handle_(std::make_unique<Handle>()) {
  InitCurlOnce();
  handle_->curl.reset(curl_easy_init());
}

HttpConnection::~HttpConnection() = default;

HttpAnswer HttpConnection::Perform(const HttpRequest& request) {
  CURL* curl = handle_->curl.get();
  curl_easy_reset(curl);  // keeps the connection
  CurlList headers(nullptr, &curl_slist_free_all);
  for (const std::string& header : request.headers) {
    curl_slist* longer = curl_slist_append(headers.get(), header.c_str());
    static_cast<void>(headers.release());
    headers.reset(longer);
  }
  char error_text[CURL_ERROR_SIZE] = {};
  Transfer transfer{.request = request, .curl = curl, .answer = {}};
  SetUp(curl, &transfer, headers, error_text);
  const CURLcode code = curl_easy_perform(curl);
  HttpAnswer answer = transfer.answer;
  answer.status = transfer.Status();
  transfer.answer.status = answer.status;
  answer.end = EndOf(transfer, code);
  curl_off_t retry_after_s = 0;
  curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &retry_after_s);
  answer.retry_after_ms = std::min<std::int64_t>(retry_after_s, kMaxRetryAfterMs / 1000) * 1000;
  if (transfer.stalled) {
    answer.message = fmt::format("no data for {} ms", request.stall_timeout_ms);
  } else if (answer.end == HttpAnswer::End::kStatus) {
    answer.message = fmt::format("status {}", answer.status);
  } else if (answer.end != HttpAnswer::End::kDone) {
    answer.message = error_text[0] != '\0' ? error_text : curl_easy_strerror(code);
  }
  return answer;
}

bool PauseBeforeRetry(std::int64_t first_ms,
                      int attempt,
                      std::int64_t retry_after_ms,
                      const std::function<bool()>& alive) {
  static thread_local std::minstd_rand random{std::random_device{}()};
  const std::int64_t base_ms = std::min(first_ms << std::clamp(attempt, 0, 16), kMaxBackoffMs);
  std::int64_t left_ms = std::uniform_int_distribution<std::int64_t>(base_ms / 2, base_ms)(random);
  left_ms = std::max(left_ms, retry_after_ms);
  std::mutex mutex;
  std::condition_variable never;
  while (left_ms > 0) {
    if (alive && !alive()) {
      return false;
    }
    const std::int64_t slice_ms = std::min<std::int64_t>(left_ms, 100);
    std::unique_lock lock(mutex);
    never.wait_for(lock, std::chrono::milliseconds(slice_ms));
    left_ms -= slice_ms;
  }
  return true;
}

std::string UrlEscaped(std::string_view text, std::string_view keep) {
  std::string escaped;
  for (const char c : text) {
    const bool plain = (std::isalnum(static_cast<unsigned char>(c)) != 0) ||
                       std::string_view("-._~").find(c) != std::string_view::npos ||
                       keep.find(c) != std::string_view::npos;
    escaped += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return escaped;
}

}  // namespace inferd::store
