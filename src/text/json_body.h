// SPDX-License-Identifier: Apache-2.0
// {"name": .., "arguments": {..}}, or a list of these.
#pragma once

#include "text/call_body.h"
#include "text/json_stream.h"

namespace inferd::text {

/// Takes the keys in any order, arguments as an object or as its text, and the call one level
/// deeper under "function".
class JsonBody final : public CallBody {
 public:
  JsonBody(const CallDialect& dialect, bool bare) : dialect_(dialect), bare_(bare) {}

  Status Push(char c, CallSink* sink) override;
  bool MayEnd() const override;
  bool End(bool at_marker, CallSink* sink) override;

 private:
  enum class State : std::uint8_t {
    kOutside,  // before, between and after objects
    kKey,      // a key, a comma or the object's end comes
    kInKey,
    kColon,
    kValue,
    kInName,
    kInArguments,
    kInArgumentsText,
    kInOther,
  };

  Status Outside(char c);
  Status Key(char c, CallSink* sink);
  Status Value(char c, CallSink* sink);
  Status InArguments(char c, CallSink* sink);
  Status InOther(char c, CallSink* sink);
  Status TakeName(CallSink* sink);
  void Emit(std::string_view json, CallSink* sink);
  void Begin(CallSink* sink);
  void Close(CallSink* sink);

  const CallDialect& dialect_;
  bool bare_;
  State state_ = State::kOutside;
  bool in_list_ = false;
  bool closed_list_ = false;
  int calls_ = 0;
  // Of the present object.
  int nested_ = 0;
  bool has_name_ = false;
  bool begun_ = false;
  std::string key_;
  std::string name_;
  std::string held_;  // arguments that came before the name
  JsonStringDecoder decoder_;
  JsonValue value_;
};

}  // namespace inferd::text
