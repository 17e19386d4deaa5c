// SPDX-License-Identifier: Apache-2.0
#include "text/tags_body.h"

#include "text/json_stream.h"
#include "text/named_body.h"
#include "text/python_body.h"
#include "text/white_space.h"

#include <nlohmann/json.hpp>

namespace inferd::text {
namespace {

constexpr std::size_t kMaxNameBytes = 512;

std::uint8_t TypeOf(std::string_view json) {
  switch (json.front()) {
    case '{':
      return kObjectType;
    case '[':
      return kArrayType;
    case 't':
    case 'f':
      return kBooleanType;
    case 'n':
      return kNullType;
    case '"':
      return kStringType;
    default:
      return kNumberType;
  }
}

}  // namespace

std::string TextToJson(std::string_view text, std::uint8_t types) {
  const std::string_view trimmed = Trim(text);
  if (!trimmed.empty()) {
    std::string json(trimmed);
    if (!nlohmann::json::accept(json)) {
      json = PythonToJson(trimmed).value_or("");
    }
    if (!json.empty() && (TypeOf(json) & types & ~kStringType) != 0) {
      return json;
    }
    if (!json.empty() && TypeOf(json) == kStringType && (types & kStringType) == 0) {
      return json;
    }
  }
  std::string quoted;
  AppendJsonString(text, &quoted);
  return quoted;
}

TagsBody::TagsBody(const CallDialect& dialect)
    : dialect_(dialect),
      name_end_(Trim(dialect.name_end)),
      key_start_(Trim(dialect.key_start)),
      key_end_(Trim(dialect.key_end)),
      value_start_(Trim(dialect.value_start)),
      value_end_(Trim(dialect.value_end)) {}

CallBody::Status TagsBody::Push(char c, CallSink* sink) {
  switch (state_) {
    case State::kName:
      return Name(c, sink);
    case State::kBetween:
      return Between(c, sink);
    case State::kKey:
      text_ += c;
      if (text_.ends_with(key_end_)) {
        text_.resize(text_.size() - key_end_.size());
        BeginValue(sink);
      } else if (text_.size() > kMaxNameBytes) {
        return Break(sink);
      }
      return Status::kMore;
    case State::kValueStart:
      return ValueStart(c, sink);
    case State::kValue:
      return Value(c, sink);
  }
  return Status::kBroken;
}

bool TagsBody::Begin(std::string_view name, CallSink* sink) {
  name_ = Trim(name);
  text_.clear();
  state_ = State::kBetween;
  if (!IsToolName(name_)) {
    return false;
  }
  begun_ = true;
  sink->BeginCall(name_, {});
  return true;
}

CallBody::Status TagsBody::Name(char c, CallSink* sink) {
  text_ += c;
  if (!name_end_.empty()) {
    if (text_.ends_with(name_end_)) {
      return Begin(text_.substr(0, text_.size() - name_end_.size()), sink) ? Status::kMore
                                                                           : Status::kBroken;
    }
  } else if (c == '\n' && !Trim(text_).empty()) {
    return Begin(text_, sink) ? Status::kMore : Status::kBroken;
  } else if (text_.ends_with(key_start_)) {
    if (!Begin(text_.substr(0, text_.size() - key_start_.size()), sink)) {
      return Status::kBroken;
    }
    state_ = State::kKey;
  }
  return text_.size() > kMaxNameBytes ? Status::kBroken : Status::kMore;
}

CallBody::Status TagsBody::Between(char c, CallSink* sink) {
  if (text_.empty() && IsSpace(c)) {
    return Status::kMore;
  }
  text_ += c;
  if (!key_start_.starts_with(text_)) {
    return Break(sink);
  }
  if (text_ == key_start_) {
    text_.clear();
    state_ = State::kKey;
  }
  return Status::kMore;
}

void TagsBody::BeginValue(CallSink* sink) {
  const std::string_view key = Trim(text_);
  types_ = sink->TypesOf(name_, key);
  streams_ = types_ == kStringType;
  std::string json = has_arguments_ ? ", " : "{";
  AppendJsonString(key, &json);
  json += streams_ ? ": \"" : ": ";
  sink->AddArguments(json);
  has_arguments_ = true;
  text_.clear();
  at_value_begin_ = true;
  state_ = value_start_.empty() ? State::kValue : State::kValueStart;
}

CallBody::Status TagsBody::ValueStart(char c, CallSink* sink) {
  if (text_.empty() && IsSpace(c)) {
    return Status::kMore;
  }
  text_ += c;
  if (text_ == value_start_) {
    text_.clear();
    state_ = State::kValue;
    return Status::kMore;
  }
  if (value_start_.starts_with(text_)) {
    return Status::kMore;
  }
  state_ = State::kValue;  // the marker was left out; what came is the value's beginning
  std::string value;
  value.swap(text_);
  for (const char v : value) {
    Value(v, sink);
  }
  return Status::kMore;
}

CallBody::Status TagsBody::Value(char c, CallSink* sink) {
  if (at_value_begin_) {
    at_value_begin_ = false;
    if (c == '\n' && dialect_.value_start.ends_with('\n')) {
      return Status::kMore;
    }
  }
  text_ += c;
  if (text_.ends_with(value_end_)) {
    text_.resize(text_.size() - value_end_.size());
    if (dialect_.value_end.starts_with('\n') && text_.ends_with('\n')) {
      text_.pop_back();
    }
    EndValue(sink);
  } else if (streams_ && text_.size() > value_end_.size() + 64) {
    StreamValue(text_.size() - value_end_.size(), sink);
  }
  return Status::kMore;
}

/// Gives out the value's first bytes, up to the beginning of a character at or before `bytes`; the
/// rest may become the end marker, with a line break before it.
void TagsBody::StreamValue(std::size_t bytes, CallSink* sink) {
  std::size_t end = bytes - 1;
  while (end > 0 && (static_cast<unsigned char>(text_[end]) & 0xc0) == 0x80) {
    --end;
  }
  std::string json;
  AppendJsonEscaped(std::string_view(text_).substr(0, end), &json);
  text_.erase(0, end);
  sink->AddArguments(json);
}

void TagsBody::EndValue(CallSink* sink) {
  std::string json;
  if (streams_) {
    AppendJsonEscaped(text_, &json);
    json += '"';
  } else {
    json = TextToJson(text_, types_);
  }
  sink->AddArguments(json);
  text_.clear();
  state_ = State::kBetween;
}

void TagsBody::Close(CallSink* sink) {
  sink->AddArguments(has_arguments_ ? "}" : "{}");
  sink->EndCall();
}

CallBody::Status TagsBody::Break(CallSink* sink) {
  if (begun_) {
    Close(sink);
  }
  return Status::kBroken;
}

bool TagsBody::End(bool at_marker, CallSink* sink) {
  if (!begun_ && (!at_marker || !Begin(text_, sink))) {
    return false;
  }
  if (at_marker) {
    Close(sink);
    return true;
  }
  if (state_ == State::kValue) {  // cut short: as much as there is, as an unfinished object
    std::string json;
    AppendJsonEscaped(text_, &json);
    sink->AddArguments(streams_ ? json : text_);
  }
  return true;
}

}  // namespace inferd::text
