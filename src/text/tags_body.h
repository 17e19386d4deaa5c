// SPDX-License-Identifier: Apache-2.0
// A name and parameters in tags; values are text, whose JSON type the tool's schema tells.
#pragma once

#include "text/call_body.h"

namespace inferd::text {

class TagsBody final : public CallBody {
 public:
  explicit TagsBody(const CallDialect& dialect);

  Status Push(char c, CallSink* sink) override;
  bool MayEnd() const override { return state_ == State::kName || state_ == State::kBetween; }
  bool End(bool at_marker, CallSink* sink) override;
  std::string Rest(char /*c*/) const override { return text_; }

 private:
  enum class State : std::uint8_t { kName, kBetween, kKey, kValueStart, kValue };

  Status Name(char c, CallSink* sink);
  Status Between(char c, CallSink* sink);
  Status ValueStart(char c, CallSink* sink);
  Status Value(char c, CallSink* sink);
  Status Break(CallSink* sink);
  bool Begin(std::string_view name, CallSink* sink);
  void BeginValue(CallSink* sink);
  void EndValue(CallSink* sink);
  void StreamValue(std::size_t bytes, CallSink* sink);
  void Close(CallSink* sink);

  const CallDialect& dialect_;
  const std::string name_end_;  // without white space, like the rest of these
  const std::string key_start_;
  const std::string key_end_;
  const std::string value_start_;
  const std::string value_end_;
  State state_ = State::kName;
  bool begun_ = false;
  std::string name_;
  std::string text_;            // of the present part
  bool streams_ = false;        // the value can only be a string, so it is given out as it comes
  bool at_value_begin_ = true;  // a line break may still be dropped
  std::uint8_t types_ = kAnyType;
  bool has_arguments_ = false;
};

/// A value that was written as text, as JSON of one of the types (TypeBits).
std::string TextToJson(std::string_view text, std::uint8_t types);

}  // namespace inferd::text
