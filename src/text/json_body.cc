// SPDX-License-Identifier: Apache-2.0
#include "text/json_body.h"

#include "text/white_space.h"

#include <algorithm>

namespace inferd::text {
namespace {

bool OneOf(const std::vector<std::string>& keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

}  // namespace

bool JsonBody::MayEnd() const {
  switch (state_) {
    case State::kInKey:
    case State::kInName:
    case State::kInArgumentsText:
      return false;
    case State::kInArguments:
    case State::kInOther:
      return !value_.in_string();
    default:
      return true;
  }
}

CallBody::Status JsonBody::Push(char c, CallSink* sink) {
  switch (state_) {
    case State::kOutside:
      return Outside(c);
    case State::kKey:
      return Key(c, sink);
    case State::kInKey:
      if (decoder_.Push(c, &key_)) {
        state_ = State::kColon;
      }
      return Status::kMore;
    case State::kColon:
      if (c == ':') {
        state_ = State::kValue;
        return Status::kMore;
      }
      return IsSpace(c) ? Status::kMore : Status::kBroken;
    case State::kValue:
      return IsSpace(c) ? Status::kMore : Value(c, sink);
    case State::kInName:
      return decoder_.Push(c, &name_) ? TakeName(sink) : Status::kMore;
    case State::kInArguments:
      return InArguments(c, sink);
    case State::kInArgumentsText: {
      std::string piece;
      if (decoder_.Push(c, &piece)) {
        state_ = State::kKey;
      }
      Emit(piece, sink);
      return Status::kMore;
    }
    case State::kInOther:
      return InOther(c, sink);
  }
  return Status::kBroken;
}

CallBody::Status JsonBody::Outside(char c) {
  if (IsSpace(c) || (in_list_ && calls_ > 0 && c == ',')) {
    return Status::kMore;
  }
  if (c == '[' && !in_list_) {
    in_list_ = true;
    return Status::kMore;
  }
  if (c == ']' && in_list_ && calls_ > 0) {
    return Status::kDone;
  }
  if (c != '{') {
    return Status::kBroken;
  }
  nested_ = 0;
  has_name_ = false;
  begun_ = false;
  name_.clear();
  held_.clear();
  state_ = State::kKey;
  return Status::kMore;
}

CallBody::Status JsonBody::Key(char c, CallSink* sink) {
  if (IsSpace(c) || c == ',') {
    return Status::kMore;
  }
  if (c == '"') {
    key_.clear();
    decoder_ = {};
    state_ = State::kInKey;
    return Status::kMore;
  }
  if (c != '}') {
    return Status::kBroken;
  }
  if (nested_ > 0) {
    --nested_;
    return Status::kMore;
  }
  if (!has_name_) {
    return Status::kBroken;
  }
  Close(sink);
  return in_list_ ? Status::kMore : Status::kDone;
}

CallBody::Status JsonBody::Value(char c, CallSink* sink) {
  const bool is_function = key_ == "function";
  if (!has_name_ && c == '"' && (is_function || OneOf(dialect_.name_keys, key_))) {
    name_.clear();
    decoder_ = {};
    state_ = State::kInName;
    return Status::kMore;
  }
  if (is_function && c == '{') {
    ++nested_;
    state_ = State::kKey;
    return Status::kMore;
  }
  value_ = {};
  if (OneOf(dialect_.argument_keys, key_) && !begun_ && held_.empty()) {
    decoder_ = {};
    state_ = c == '"' ? State::kInArgumentsText : State::kInArguments;
    return c == '"' ? Status::kMore : InArguments(c, sink);
  }
  if (bare_ && !has_name_ && key_ != "type" && key_ != "id") {
    return Status::kBroken;  // an object of another kind
  }
  state_ = State::kInOther;
  return InOther(c, sink);
}

CallBody::Status JsonBody::InArguments(char c, CallSink* sink) {
  std::string piece;
  const JsonValue::Status status = value_.Push(c, &piece);
  if (value_.is_container()) {  // null and other things that are no arguments are left out
    Emit(piece, sink);
  }
  if (status == JsonValue::Status::kMore) {
    return Status::kMore;
  }
  state_ = State::kKey;
  return status == JsonValue::Status::kDone ? Status::kMore : Key(c, sink);
}

CallBody::Status JsonBody::InOther(char c, CallSink* sink) {
  std::string ignored;
  const JsonValue::Status status = value_.Push(c, &ignored);
  if (status == JsonValue::Status::kMore) {
    return Status::kMore;
  }
  state_ = State::kKey;
  return status == JsonValue::Status::kDone ? Status::kMore : Key(c, sink);
}

CallBody::Status JsonBody::TakeName(CallSink* sink) {
  if (name_.empty() || (bare_ && !sink->KnowsTool(name_))) {
    return Status::kBroken;
  }
  has_name_ = true;
  state_ = State::kKey;
  if (!held_.empty()) {
    Begin(sink);
    sink->AddArguments(held_);
  }
  return Status::kMore;
}

void JsonBody::Emit(std::string_view json, CallSink* sink) {
  if (json.empty()) {
    return;
  }
  if (!has_name_) {
    held_ += json;
    return;
  }
  Begin(sink);
  sink->AddArguments(json);
}

void JsonBody::Begin(CallSink* sink) {
  if (!begun_) {
    begun_ = true;
    sink->BeginCall(name_, {});
  }
}

void JsonBody::Close(CallSink* sink) {
  Begin(sink);
  sink->EndCall();
  ++calls_;
  state_ = State::kOutside;
}

bool JsonBody::End(bool at_marker, CallSink* sink) {
  if (state_ == State::kOutside) {
    return calls_ > 0;
  }
  if (!begun_ && !(at_marker && has_name_)) {
    return false;
  }
  Close(sink);
  return true;
}

}  // namespace inferd::text
