// SPDX-License-Identifier: Apache-2.0
#include "text/channel_parser.h"

#include "text/named_body.h"
#include "text/white_space.h"

#include <algorithm>

namespace inferd::text {
namespace {

constexpr std::size_t kMaxHeaderBytes = 1024;

/// The word behind the first `mark` of a header.
std::string_view WordAfter(std::string_view header, std::string_view mark) {
  const std::size_t at = header.find(mark);
  if (at == std::string_view::npos) {
    return {};
  }
  header.remove_prefix(at + mark.size());
  return header.substr(0, header.find_first_of(" \t\r\n<"));
}

}  // namespace

ChannelParser::ChannelParser(const ParserOptions& options, std::string_view begun)
    : options_(options), writer_(options) {
  for (const std::string_view marker : harmony::kMarkers) {
    markers_.Add(marker, 0);
  }
  buffer_ = begun;
  Run(false);  // writes nothing: the writer has no output yet
  writer_.DropSpace();
  given_ = header_.size();
}

void ChannelParser::ClearHeader() {
  header_.clear();
  given_ = 0;
}

void ChannelParser::Push(std::string_view text, std::vector<OutputDelta>* out) {
  writer_.SetOutput(out);
  buffer_ += text;
  Run(false);
  writer_.SetOutput(nullptr);
}

void ChannelParser::Run(bool final) {
  std::size_t at = 0;
  while (at < buffer_.size() && !writer_.full()) {
    const std::string_view rest = std::string_view(buffer_).substr(at);
    std::size_t size = 1;
    if (markers_.MayBegin(rest.front()) && !(state_ == State::kCall && arguments_.in_string())) {
      const MarkerSet::Found found = markers_.At(rest);
      if (found.event >= 0) {
        const std::string marker(rest.substr(0, found.size));
        Take(marker);
        at += found.size;
        continue;
      }
      if (found.undecided && !final) {
        break;
      }
    } else if (state_ != State::kCall) {
      while (size < rest.size() && !markers_.MayBegin(rest[size])) {
        ++size;
      }
    }
    Text(rest.substr(0, size));
    at += size;
  }
  buffer_.erase(0, at);
}

void ChannelParser::Take(std::string_view marker) {
  if (marker == harmony::kMessage && state_ == State::kHeader) {
    return BeginMessage();
  }
  if (state_ != State::kHeader) {
    EndMessage();
  }
  if (marker == harmony::kStart || marker == harmony::kEnd || marker == harmony::kCall ||
      marker == harmony::kReturn) {
    ClearHeader();
  } else {
    header_ += marker;
  }
}

void ChannelParser::BeginMessage() {
  const std::string_view channel = WordAfter(header_, harmony::kChannel);
  std::string_view recipient = WordAfter(header_, harmony::kRecipient);
  if (recipient.starts_with(harmony::kFunctions)) {
    recipient.remove_prefix(harmony::kFunctions.size());
  } else if (!writer_.KnowsTool(recipient)) {
    recipient = {};
  }
  const bool is_call = options_.dialect.calls != nullptr && IsToolName(recipient);
  const bool is_reasoning = channel == harmony::kReasoning && options_.dialect.reasoning != nullptr;
  tool_ = recipient;
  ClearHeader();
  arguments_ = {};
  call_begun_ = false;
  call_done_ = false;
  skip_space_ = true;
  state_ = is_call ? State::kCall : is_reasoning ? State::kReasoning : State::kContent;
  if (state_ == State::kContent && writer_.has_content()) {
    writer_.Content("\n\n");
  }
}

void ChannelParser::EndMessage() {
  if (state_ == State::kCall && call_begun_ && !call_done_) {
    writer_.EndCall();
  }
  if (state_ == State::kReasoning) {
    writer_.DropSpace();
  } else {
    writer_.FlushSpace();
  }
  state_ = State::kHeader;
  ClearHeader();
}

void ChannelParser::Text(std::string_view text) {
  switch (state_) {
    case State::kHeader:
      header_ += text;
      if (header_.size() > kMaxHeaderBytes) {  // no message of this form: plain text
        state_ = State::kContent;
        writer_.Content(header_.substr(given_));
        ClearHeader();
      }
      return;
    case State::kCall:
      return CallText(text.front());
    case State::kReasoning:
    case State::kContent:
      break;
  }
  if (skip_space_) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    if (text.empty()) {
      return;
    }
    skip_space_ = false;
  }
  if (state_ == State::kReasoning) {
    writer_.Reasoning(text);
  } else {
    writer_.Content(text);
  }
}

void ChannelParser::CallText(char c) {
  if (call_done_) {
    return;
  }
  std::string json;
  const JsonValue::Status status = arguments_.Push(c, &json);
  if (arguments_.begun() && !arguments_.is_container() && !call_begun_) {
    state_ = State::kContent;  // no arguments
    skip_space_ = false;
    return writer_.Content({&c, 1});
  }
  if (arguments_.begun() && !call_begun_) {
    call_begun_ = true;
    writer_.BeginCall(tool_, {});
  }
  writer_.AddArguments(json);
  if (status != JsonValue::Status::kMore && call_begun_) {
    call_done_ = true;
    writer_.EndCall();
  }
}

void ChannelParser::Finish(std::vector<OutputDelta>* out) {
  writer_.SetOutput(out);
  Run(true);
  if (state_ == State::kHeader) {
    if (header_.find(harmony::kChannel) == std::string::npos) {  // plain text
      writer_.Content(header_.substr(given_));
    }
    writer_.FlushSpace();
  } else if (!writer_.full()) {
    EndMessage();
  }
  writer_.SetOutput(nullptr);
}

}  // namespace inferd::text
