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

/// Whether a body that is longer than most may come.
struct LongBody {
  int status = 0;  // 0: it may; else of the refusal
  std::string reason;
  std::shared_ptr<const void> place;  // held as long as the body is: it lies in memory
};

/// Asked for each body that may be longer than BodyLimits::max_bytes, before any of it is read.
class LongBodyGate {
 public:
  virtual ~LongBodyGate() = default;
  virtual LongBody AdmitLongBody(const HttpRequest& head) = 0;
};

/// How long a body may be.
struct BodyLimits {
  std::size_t max_bytes = 0;
  std::size_t max_upload_bytes = 0;  // not above max_bytes: no body may be longer
  LongBodyGate* gate = nullptr;      // needed for longer ones; outlives the parser
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
  bool has_upload_place() const;
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
