// SPDX-License-Identifier: Apache-2.0
// One HTTP request at a time over a connection that is kept, and when to ask again. libcurl lives
// in http.cc only. Included by .cc files of this room and its tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::store {

/// AWS Signature Version 4 of the service s3. A session token is a header, and signed as one.
struct HttpSigning {
  std::string region;
  std::string key_id;
  std::string secret;
};

struct HttpRequest {
  std::string url;  // http or https; already escaped
  bool head = false;
  std::vector<std::string> headers;  // "Name: value"; Authorization is dropped on other hosts
  std::optional<HttpSigning> signing;
  std::int64_t offset = 0;  // of the first byte wanted
  std::int64_t length = 0;  // bytes wanted; 0: to the end
  bool follow_redirects = true;
  std::string ca_bundle;  // PEM file; empty: the system's
  bool verify_tls = true;
  std::int64_t connect_timeout_ms = 15'000;
  std::int64_t stall_timeout_ms = 30'000;  // without a new byte, or below 1 KiB/s
  /// Takes the body as it comes, of a success only; false breaks off.
  std::function<bool(std::string_view)> write;
  /// (bytes received, bytes of the answer or 0), called often; false cancels.
  std::function<bool(std::int64_t, std::int64_t)> alive;
};

struct HttpAnswer {
  enum class End : std::uint8_t {
    kDone,          // a success, received to its end
    kStatus,        // 3xx, 4xx or 5xx
    kLost,          // the connection failed in a way that may pass
    kFailed,        // and in one that will not
    kRangeIgnored,  // a part was asked for, but the whole or another came; nothing was written
    kWriteFailed,
    kCancelled,
  };
  End end = End::kFailed;
  int status = 0;                              // 0: none came
  std::int64_t received = 0;                   // bytes given to write
  std::int64_t retry_after_ms = 0;             // what the server asks for, at most two minutes
  std::map<std::string, std::string> headers;  // of the last answer; names in lower case
  std::string error_body;                      // its beginning, with kStatus
  std::string message;                         // why, when not kDone

  /// Empty if there is none.
  std::string_view Header(const std::string& lower_case_name) const;
  /// Asking again may help: lost connections, 408, 429, 5xx.
  bool MayPass() const;
};

/// Not thread-safe; each thread has its own.
class HttpConnection {
 public:
  HttpConnection();
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  /// Blocks; a request without an answer ends by its timeouts. Never follows to another protocol.
  HttpAnswer Perform(const HttpRequest& request);

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

/// Waits before attempt number `attempt` (from 1 on): exponential from first_ms to 30 s with
/// jitter, at least what the server asked for. Calls alive() every 100 ms; false when that does.
bool PauseBeforeRetry(std::int64_t first_ms,
                      int attempt,
                      std::int64_t retry_after_ms,
                      const std::function<bool()>& alive);

/// `text` with every byte but letters, digits, "-._~" and those of `keep` as %XX.
std::string UrlEscaped(std::string_view text, std::string_view keep);

}  // namespace inferd::store
