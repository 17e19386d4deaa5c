// SPDX-License-Identifier: Apache-2.0
// Strict parsing of one HTTP/1.1 request from bytes that arrive in any pieces. A scan of our own
// refuses what RFC 9112 lets a server repair (bare LF, folded lines, blanks before a colon, two
// framings); Boost.Beast's parser does the rest. Beast's headers are seen by http_parser.cc only.
#pragma once

#include "api/http/http_message.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace inferd::api {

/// Checks the bytes of a request's head as they come; keeps no bytes itself.
class HeadScanner {
 public:
  enum class State { kMore, kDone, kBad };
  /// `head` is everything received of the request so far; what was scanned before is not looked at
  /// again.
  State Scan(std::string_view head);
  /// Of a refused head: 400 or 431, and why.
  int status() const { return status_; }
  std::string_view reason() const { return reason_; }
  std::size_t head_bytes() const { return at_; }  // after kDone

 private:
  State Bad(int status, std::string_view reason);

  std::size_t at_ = 0;
  std::size_t line_start_ = 0;
  std::size_t lines_ = 0;
  int status_ = 0;
  std::string_view reason_;
};

/// How long a body may be. Uploads (POST /v1/files) may be longer than others, but only as many at
/// once as there are places: a body is held in memory.
struct BodyLimits {
  std::size_t max_bytes = 0;
  std::size_t max_upload_bytes = 0;  // not above max_bytes: uploads are like others
  int* upload_places = nullptr;      // those left, of one I/O thread; needed for longer uploads
};

/// Lives only while a request is being read. Single-threaded.
class HttpParser {
 public:
  explicit HttpParser(const BodyLimits& limits);
  ~HttpParser();
  HttpParser(const HttpParser&) = delete;
  HttpParser& operator=(const HttpParser&) = delete;

  enum class State { kMore, kDone, kBad };
  /// Takes what it can of `input`; `*used` bytes are done with, the rest must be offered again with
  /// more behind it.
  State Feed(std::string_view input, std::size_t* used);

  bool head_done() const;
  /// True once, when the client waits for "100 Continue" before it sends the body.
  bool TakeContinue();
  /// After kDone.
  HttpRequest Take();
  /// What is known of a refused request (method, id), for the answer and the log.
  HttpRequest Partial() const;
  int status() const { return status_; }
  const std::string& reason() const { return reason_; }

 private:
  struct Impl;
  State Bad(int status, std::string reason);
  bool CheckHead();
  bool CheckLength();

  std::unique_ptr<Impl> impl_;
  int status_ = 400;
  std::string reason_;
};

}  // namespace inferd::api
