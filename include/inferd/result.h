// SPDX-License-Identifier: Apache-2.0
// Errors as values: Error, Result<T> and the two macros that pass an error on. Everything in inferd
// that can fail because of a client, a file, a peer, a device or a setting returns a Result;
// nothing throws.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace inferd {

/// Canonical error codes. The numbers are those of gRPC, so that they cross the wire unchanged.
enum class Code : std::uint8_t {
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

/// The wire name of a code, e.g. "INVALID_ARGUMENT".
std::string_view CodeName(Code code);

/// What went wrong: a canonical code and a sentence that says what, which value, and what to do
/// about it.
class Error {
 public:
  Error(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  /// The same error with `context` and ": " put in front. Add context once, where it is known.
  Error WithContext(std::string_view context) const {
    std::string text(context);
    text += ": ";
    text += message_;
    return {code_, std::move(text)};
  }

 private:
  Code code_;
  std::string message_;
};

/// A T or an Error. [[nodiscard]]: a result that is dropped is a compile error under -Werror.
template <class T = void>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Error error)
      : value_(std::unexpected(std::move(error))) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }

  /// Precondition of the value accessors: ok().
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

  /// Precondition: !ok().
  const Error& error() const& { return value_.error(); }
  Error&& error() && { return std::move(value_).error(); }

 private:
  std::expected<T, Error> value_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;

  Result() = default;
  Result(Error error)
      : value_(std::unexpected(std::move(error))) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const& { return value_.error(); }
  Error&& error() && { return std::move(value_).error(); }

 private:
  std::expected<void, Error> value_;
};

}  // namespace inferd

#define INFERD_CONCAT_INNER(a, b) a##b
#define INFERD_CONCAT(a, b) INFERD_CONCAT_INNER(a, b)

/// Evaluates a Result expression; returns its error from the enclosing function if it failed.
#define INFERD_TRY(expr)                           \
  do {                                             \
    auto inferd_try_result = (expr);               \
    if (!inferd_try_result.ok()) {                 \
      return std::move(inferd_try_result).error(); \
    }                                              \
  } while (false)

/// INFERD_ASSIGN(auto x, MayFail()): declares or assigns x from the value, or returns the error.
#define INFERD_ASSIGN(lhs, expr) \
  INFERD_ASSIGN_INNER(INFERD_CONCAT(inferd_assign_, __LINE__), lhs, expr)
#define INFERD_ASSIGN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                        \
  if (!tmp.ok()) {                          \
    return std::move(tmp).error();          \
  }                                         \
  lhs = *std::move(tmp)
