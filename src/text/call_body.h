// SPDX-License-Identifier: Apache-2.0
// The inside of a tool call, one class per way of writing it. Fed one byte at a time by the
// DialectParser, which finds the markers around it.
#pragma once

#include "text/dialect.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace inferd::text {

/// Types a JSON value may have, as bits.
enum TypeBits : std::uint8_t {
  kStringType = 1,
  kNumberType = 2,
  kBooleanType = 4,
  kNullType = 8,
  kObjectType = 16,
  kArrayType = 32,
  kAnyType = 63,
};

/// Where calls go, and what is known of the tools.
class CallSink {
 public:
  virtual ~CallSink() = default;

  virtual bool KnowsTool(std::string_view name) const = 0;
  /// TypeBits of a tool's parameter by its schema; kAnyType when it says nothing.
  virtual std::uint8_t TypesOf(std::string_view tool, std::string_view parameter) const = 0;

  /// `id` as the model wrote it; empty: it did not.
  virtual void BeginCall(std::string_view name, std::string_view id) = 0;
  virtual void AddArguments(std::string_view json) = 0;
  virtual void EndCall() = 0;
};

class CallBody {
 public:
  enum class Status : std::uint8_t {
    kMore,
    kDone,    // with this byte
    kBroken,  // this byte does not belong to a call
  };

  virtual ~CallBody() = default;
  virtual Status Push(char c, CallSink* sink) = 0;
  /// A marker at this place ends the call; false within strings and values.
  virtual bool MayEnd() const = 0;
  /// The end marker came, or (`at_marker` false) the text's end. False: what came is no call.
  virtual bool End(bool at_marker, CallSink* sink) = 0;
  /// After kBroken within a call that had begun: what came since its last whole part, `c` included.
  virtual std::string Rest(char c) const { return {c}; }
};

/// `bare`: the call lacks its start marker, so only the names of known tools make it one. Never
/// null; the dialect outlives the body and is not kChannels.
std::unique_ptr<CallBody> MakeCallBody(const CallDialect& dialect, bool bare);

}  // namespace inferd::text
