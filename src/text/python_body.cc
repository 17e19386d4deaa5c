// SPDX-License-Identifier: Apache-2.0
#include "text/python_body.h"

#include "text/json_stream.h"
#include "text/white_space.h"

#include <nlohmann/json.hpp>

#include <cctype>

namespace inferd::text {
namespace {

constexpr std::size_t kMaxNameBytes = 256;
constexpr std::size_t kMaxDepth = 64;

bool IsWord(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-' ||
         c == '+';
}

/// A number, True, False or None; nullopt for other words.
std::optional<std::string> WordToJson(std::string_view word) {
  if (word == "True" || word == "true") {
    return "true";
  }
  if (word == "False" || word == "false") {
    return "false";
  }
  if (word == "None" || word == "null") {
    return "null";
  }
  std::string number;
  for (const char c : word) {
    if (c != '_' && !(c == '+' && number.empty())) {
      number += c;
    }
  }
  const std::size_t digits = number.starts_with('-') ? 1 : 0;
  if (number.size() > digits && number[digits] == '.') {
    number.insert(digits, "0");
  }
  if (number.ends_with('.')) {
    number += '0';
  }
  if (number.empty() || !nlohmann::json::accept(number)) {
    return std::nullopt;
  }
  return number;
}

}  // namespace

PythonValue::Status PythonValue::AfterValue() {
  state_ = State::kAfter;
  return levels_.empty() ? Status::kDone : Status::kMore;
}

void PythonValue::Comma(std::string* out) {
  if (comma_) {
    *out += ", ";
    comma_ = false;
  }
}

PythonValue::Status PythonValue::Push(char c, std::string* out) {
  switch (state_) {
    case State::kValue:
      return Value(c, out);
    case State::kWord:
      if (IsWord(c)) {
        word_ += c;
        return word_.size() > kMaxNameBytes ? Status::kBroken : Status::kMore;
      }
      if (c == '\'' || c == '"') {  // a prefix of a string: r"..", f".."
        word_.clear();
        return Value(c, out);
      }
      if (EndWord(out) == Status::kDone) {
        return Status::kEnded;
      }
      return After(c, out);
    case State::kString: {
      String(c, out);
      return state_ == State::kAfter ? AfterValue() : Status::kMore;
    }
    case State::kAfter:
      return After(c, out);
  }
  return Status::kBroken;
}

PythonValue::Status PythonValue::Value(char c, std::string* out) {
  if (IsSpace(c)) {
    return Status::kMore;
  }
  if (c == '\'' || c == '"') {
    Comma(out);
    quote_ = c;
    *out += '"';
    state_ = State::kString;
    return Status::kMore;
  }
  if (c == '{' || c == '[' || c == '(') {
    if (WantsKey() || levels_.size() >= kMaxDepth) {
      return Status::kBroken;
    }
    Comma(out);
    const bool dict = c == '{';
    *out += dict ? '{' : '[';
    levels_.push_back({dict ? '}' : c == '[' ? ']' : ')', dict, dict});
    return Status::kMore;
  }
  if (IsWord(c)) {
    Comma(out);
    word_ = c;
    state_ = State::kWord;
    return Status::kMore;
  }
  return Close(c, out);
}

PythonValue::Status PythonValue::Close(char c, std::string* out) {
  if (levels_.empty() || levels_.back().close != c) {
    return Status::kBroken;
  }
  comma_ = false;
  *out += levels_.back().dict ? '}' : ']';
  levels_.pop_back();
  return AfterValue();
}

PythonValue::Status PythonValue::After(char c, std::string* out) {
  if (IsSpace(c)) {
    return Status::kMore;
  }
  if (levels_.empty()) {
    return Status::kEnded;
  }
  Level& level = levels_.back();
  if (level.dict && level.key) {
    if (c != ':') {
      return Status::kBroken;
    }
    level.key = false;
    *out += ": ";
    state_ = State::kValue;
    return Status::kMore;
  }
  if (c == ',') {
    comma_ = true;
    level.key = level.dict;
    state_ = State::kValue;
    return Status::kMore;
  }
  return Close(c, out);
}

PythonValue::Status PythonValue::EndWord(std::string* out) {
  const auto json = WordToJson(word_);
  if (json && !WantsKey()) {
    *out += *json;
  } else {
    AppendJsonString(word_, out);
  }
  word_.clear();
  return AfterValue();
}

void PythonValue::String(char c, std::string* out) {
  if (hex_left_ > 0) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isxdigit(byte) != 0) {
      hex_ = hex_ << 4 |
             static_cast<std::uint32_t>(std::isdigit(byte) != 0 ? c - '0' : (c | 0x20) - 'a' + 10);
      if (--hex_left_ == 0) {
        std::string character;
        AppendUtf8(hex_, &character);
        AppendJsonEscaped(character, out);
      }
      return;
    }
    hex_left_ = 0;
  }
  if (escaped_) {
    escaped_ = false;
    return Escape(c, out);
  }
  if (c == '\\') {
    escaped_ = true;
  } else if (c == quote_) {
    *out += '"';
    state_ = State::kAfter;
  } else {
    AppendJsonEscaped({&c, 1}, out);
  }
}

void PythonValue::Escape(char c, std::string* out) {
  constexpr std::string_view kFrom = "bfnrt'\"\\";
  constexpr std::string_view kTo = "\b\f\n\r\t'\"\\";
  hex_ = 0;
  hex_left_ = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  if (hex_left_ > 0 || c == '\n') {
    return;
  }
  const std::size_t at = kFrom.find(c);
  if (at == std::string_view::npos) {
    *out += "\\\\";
    AppendJsonEscaped({&c, 1}, out);
  } else if (kTo[at] == '\b' || kTo[at] == '\f') {
    *out += '\\';
    *out += c;
  } else {
    AppendJsonEscaped(kTo.substr(at, 1), out);
  }
}

std::optional<std::string> PythonToJson(std::string_view text) {
  PythonValue value;
  std::string json;
  PythonValue::Status status = PythonValue::Status::kMore;
  for (const char c : text) {
    if (status != PythonValue::Status::kMore) {
      return std::nullopt;
    }
    status = value.Push(c, &json);
  }
  if (status == PythonValue::Status::kMore) {  // a word ends with the text
    status = value.Push(' ', &json);
  }
  if (status != PythonValue::Status::kDone && status != PythonValue::Status::kEnded) {
    return std::nullopt;
  }
  return nlohmann::json::accept(json) ? std::optional(json) : std::nullopt;
}

CallBody::Status PythonBody::Push(char c, CallSink* sink) {
  switch (state_) {
    case State::kOutside:
      return Outside(c);
    case State::kName:
      return Name(c, sink);
    case State::kArgument:
    case State::kArgumentName:
    case State::kEquals:
      return Argument(c, sink);
    case State::kValue:
      return Value(c, sink);
  }
  return Status::kBroken;
}

CallBody::Status PythonBody::Outside(char c) {
  if (IsSpace(c) || (c == ',' && calls_ > 0)) {
    return Status::kMore;
  }
  if (c == '[' && !in_list_ && calls_ == 0) {
    in_list_ = true;
    return Status::kMore;
  }
  if (c == ']' && in_list_ && calls_ > 0) {
    return Status::kDone;
  }
  if (!IsWord(c)) {
    return Status::kBroken;
  }
  word_ = c;
  state_ = State::kName;
  return Status::kMore;
}

CallBody::Status PythonBody::Name(char c, CallSink* sink) {
  if (c == '(') {
    if (bare_ && !sink->KnowsTool(word_)) {
      return Status::kBroken;
    }
    sink->BeginCall(word_, {});
    has_arguments_ = false;
    state_ = State::kArgument;
    return Status::kMore;
  }
  word_ += c;
  return IsWord(c) && word_.size() <= kMaxNameBytes ? Status::kMore : Status::kBroken;
}

CallBody::Status PythonBody::Argument(char c, CallSink* sink) {
  if (IsSpace(c) || (state_ == State::kArgument && c == ',')) {
    state_ = state_ == State::kArgumentName ? State::kEquals : state_;
    return Status::kMore;
  }
  if (state_ == State::kArgument) {
    if (c == ')') {
      sink->AddArguments(has_arguments_ ? "}" : "{}");
      sink->EndCall();
      ++calls_;
      state_ = State::kOutside;
      return in_list_ ? Status::kMore : Status::kDone;
    }
    word_ = c;
    state_ = State::kArgumentName;
    return IsWord(c) ? Status::kMore : Status::kBroken;
  }
  if (c == '=') {
    std::string json = has_arguments_ ? ", " : "{";
    AppendJsonString(word_, &json);
    json += ": ";
    sink->AddArguments(json);
    has_arguments_ = true;
    value_ = {};
    state_ = State::kValue;
    return Status::kMore;
  }
  word_ += c;
  const bool goes_on = state_ == State::kArgumentName && IsWord(c) && word_.size() <= kMaxNameBytes;
  return goes_on ? Status::kMore : Status::kBroken;
}

CallBody::Status PythonBody::Value(char c, CallSink* sink) {
  std::string json;
  const PythonValue::Status status = value_.Push(c, &json);
  if (!json.empty()) {
    sink->AddArguments(json);
  }
  switch (status) {
    case PythonValue::Status::kMore:
      return Status::kMore;
    case PythonValue::Status::kBroken:
      return Status::kBroken;
    case PythonValue::Status::kDone:
      state_ = State::kArgument;
      return Status::kMore;
    case PythonValue::Status::kEnded:
      state_ = State::kArgument;
      return Argument(c, sink);
  }
  return Status::kBroken;
}

bool PythonBody::End(bool /*at_marker*/, CallSink* sink) {
  if (state_ == State::kOutside || state_ == State::kName) {
    return calls_ > 0;
  }
  sink->EndCall();
  return true;
}

}  // namespace inferd::text
