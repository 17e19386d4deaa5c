// SPDX-License-Identifier: Apache-2.0
#include "api/core/request_span.h"

#include <chrono>
#include <utility>

namespace inferd::api {
namespace {

std::int64_t UnixNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// The last digit of the flags; a caller without a trace leaves it to the server.
bool IsSampled(std::string_view traceparent) {
  if (traceparent.empty()) {
    return true;
  }
  const char last = traceparent.back();
  const int digit = last <= '9' ? last - '0' : last - 'a' + 10;
  return (digit & 1) != 0;
}

/// Ids of zeros only are none.
bool IsUsable(std::string_view traceparent) {
  return IsTraceparent(traceparent) &&
         traceparent.substr(3, 32).find_first_not_of('0') != std::string_view::npos &&
         traceparent.substr(36, 16).find_first_not_of('0') != std::string_view::npos;
}

}  // namespace

bool IsTraceparent(std::string_view text) {
  constexpr std::string_view kForm = "xx-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx";
  if (text.size() != kForm.size()) {
    return false;
  }
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const char c = text[i];
    const bool hex = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    if (kForm[i] == 'x' ? !hex : c != '-') {
      return false;
    }
  }
  return true;
}

std::shared_ptr<OpenSpan> OpenSpan::Begin(std::shared_ptr<SpanSink> sink, RequestSpan span) {
  if (!IsUsable(span.traceparent)) {
    span.traceparent.clear();
  }
  if (sink == nullptr || !IsSampled(span.traceparent)) {
    return nullptr;
  }
  return std::make_shared<OpenSpan>(std::move(sink), std::move(span));
}

OpenSpan::OpenSpan(std::shared_ptr<SpanSink> sink, RequestSpan span)
    : sink_(std::move(sink)), span_(std::move(span)) {
  span_.began_unix_ns = UnixNs();
}

OpenSpan::~OpenSpan() {
  span_.ended_unix_ns = UnixNs();
  sink_->Put(std::move(span_));
}

}  // namespace inferd::api
