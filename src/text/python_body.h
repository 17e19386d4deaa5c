// SPDX-License-Identifier: Apache-2.0
// Python calls with keyword arguments, `[name(a=1, b="x"), ..]`, and their literals as JSON.
#pragma once

#include "text/call_body.h"

#include <optional>
#include <vector>

namespace inferd::text {

/// A Python literal as JSON, byte by byte. Tuples become lists, keys of dicts strings.
class PythonValue {
 public:
  enum class Status : std::uint8_t { kMore, kDone, kEnded, kBroken };  // kEnded: before this byte
  Status Push(char c, std::string* out);
  bool in_string() const { return state_ == State::kString; }

 private:
  enum class State : std::uint8_t { kValue, kWord, kString, kAfter };
  struct Level {
    char close;
    bool dict;
    bool key;  // the next value is a key
  };

  Status Value(char c, std::string* out);
  Status After(char c, std::string* out);
  void String(char c, std::string* out);
  void Escape(char c, std::string* out);
  Status EndWord(std::string* out);
  Status Close(char c, std::string* out);
  Status AfterValue();
  void Comma(std::string* out);
  bool WantsKey() const { return !levels_.empty() && levels_.back().dict && levels_.back().key; }

  State state_ = State::kValue;
  std::vector<Level> levels_;
  std::string word_;
  char quote_ = 0;
  bool comma_ = false;  // seen, not yet written: it may be the last of its list
  bool escaped_ = false;
  int hex_left_ = 0;
  std::uint32_t hex_ = 0;
};

/// nullopt if the text is not one whole literal.
std::optional<std::string> PythonToJson(std::string_view text);

class PythonBody final : public CallBody {
 public:
  explicit PythonBody(bool bare) : bare_(bare) {}

  Status Push(char c, CallSink* sink) override;
  bool MayEnd() const override { return state_ != State::kValue || !value_.in_string(); }
  bool End(bool at_marker, CallSink* sink) override;

 private:
  enum class State : std::uint8_t { kOutside, kName, kArgument, kArgumentName, kEquals, kValue };

  Status Outside(char c);
  Status Name(char c, CallSink* sink);
  Status Argument(char c, CallSink* sink);
  Status Value(char c, CallSink* sink);

  bool bare_;
  State state_ = State::kOutside;
  bool in_list_ = false;
  bool has_arguments_ = false;
  int calls_ = 0;
  std::string word_;
  PythonValue value_;
};

}  // namespace inferd::text
