// SPDX-License-Identifier: Apache-2.0
#include "text/named_body.h"

#include "text/white_space.h"

#include <algorithm>
#include <cctype>

namespace inferd::text {
namespace {

constexpr std::size_t kMaxHeaderBytes = 1024;

bool IsDigits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

bool IsToolName(std::string_view name) {
  constexpr std::string_view kOthers = "_.-/:";
  return !name.empty() && name.size() <= 256 && std::ranges::all_of(name, [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           kOthers.find(c) != std::string_view::npos;
  });
}

bool NamedBody::TakeHeader() {
  std::string_view header = Trim(header_);
  if (!dialect_.id_mark.empty()) {
    if (const std::size_t at = header.find(dialect_.id_mark); at != std::string_view::npos) {
      id_ = Trim(header.substr(at + dialect_.id_mark.size()));
      header = Trim(header.substr(0, at));
    }
  }
  if (!dialect_.index_mark.empty()) {
    const std::size_t at = header.rfind(dialect_.index_mark);
    if (at != std::string_view::npos && IsDigits(header.substr(at + dialect_.index_mark.size()))) {
      id_ = header;
      header = header.substr(0, at);
    }
  }
  if (const std::string_view prefix = Trim(dialect_.name_prefix); header.starts_with(prefix)) {
    header.remove_prefix(prefix.size());
  }
  name_ = Trim(header);
  return IsToolName(name_);
}

CallBody::Status NamedBody::Push(char c, CallSink* sink) {
  if (!in_arguments_) {
    header_ += c;
    const std::string_view mark = Trim(dialect_.name_end);
    if (!header_.ends_with(mark)) {
      return header_.size() > kMaxHeaderBytes ? Status::kBroken : Status::kMore;
    }
    header_.resize(header_.size() - mark.size());
    in_arguments_ = true;
    return TakeHeader() ? Status::kMore : Status::kBroken;
  }
  std::string piece;
  const JsonValue::Status status = value_.Push(c, &piece);
  if (!begun_ && value_.begun()) {
    if (!value_.is_container()) {
      return Status::kBroken;
    }
    begun_ = true;
    sink->BeginCall(name_, id_);
  }
  if (!piece.empty()) {
    sink->AddArguments(piece);
  }
  if (status == JsonValue::Status::kMore) {
    return Status::kMore;
  }
  if (status == JsonValue::Status::kEnded) {
    return Status::kBroken;
  }
  sink->EndCall();
  return Status::kDone;
}

bool NamedBody::End(bool at_marker, CallSink* sink) {
  if (!begun_ && at_marker && in_arguments_ && !value_.begun()) {
    begun_ = true;  // a call without arguments
    sink->BeginCall(name_, id_);
  }
  if (begun_) {
    sink->EndCall();
  }
  return begun_;
}

}  // namespace inferd::text
