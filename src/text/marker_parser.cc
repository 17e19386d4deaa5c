// SPDX-License-Identifier: Apache-2.0
#include "text/marker_parser.h"

#include "text/white_space.h"

#include <utility>

namespace inferd::text {

MarkerParser::MarkerParser(const ParserOptions& options, bool in_reasoning)
    : options_(options),
      calls_(options.dialect.calls.get()),
      writer_(options),
      state_(in_reasoning ? State::kReasoning : State::kContent) {
  if (const ReasoningDialect* const reasoning = options.dialect.reasoning.get()) {
    at_beginning_.Add(reasoning->start, kReasonStart);
    in_reasoning_.Add(reasoning->end, kReasonEnd);
  }
  if (calls_ == nullptr) {
    return;
  }
  for (MarkerSet* set : {&at_beginning_, &in_content_, &in_section_, &in_tail_}) {
    for (const std::string& start : calls_->start) {
      set->Add(start, kStart);
    }
  }
  for (MarkerSet* set : {&at_beginning_, &in_content_}) {
    set->Add(calls_->section_start, kSectionStart);
  }
  for (MarkerSet* set : {&in_section_, &in_call_, &in_tail_}) {
    set->Add(calls_->section_end, kSectionEnd);
  }
  if (calls_->one_per_section) {
    in_section_.Add(calls_->section_start, kPassed);
  }
  in_call_.Add(calls_->end, kEnd);
  in_tail_.Add(calls_->end, kEnd);
  in_tail_.Add(calls_->arguments_end, kPassed);
}

const MarkerSet& MarkerParser::Active() const {
  switch (state_) {
    case State::kReasoning:
      return in_reasoning_;
    case State::kContent:
      return writer_.has_content() || writer_.calls() > 0 ? in_content_ : at_beginning_;
    case State::kSection:
      return in_section_;
    case State::kCall:
      return body_->MayEnd() ? in_call_ : nothing_;
    case State::kTail:
      return in_tail_;
  }
  return nothing_;
}

void MarkerParser::Push(std::string_view text, std::vector<OutputDelta>* out) {
  writer_.SetOutput(out);
  buffer_ += text;
  Run(false);
  writer_.SetOutput(nullptr);
}

void MarkerParser::Run(bool final) {
  std::size_t at = 0;
  while (at < buffer_.size() && !writer_.full()) {
    const std::string_view rest = std::string_view(buffer_).substr(at);
    const MarkerSet& active = Active();
    if (active.MayBegin(rest.front())) {
      const MarkerSet::Found found = active.At(rest);
      if (found.event >= 0) {
        const std::string marker(rest.substr(0, found.size));
        Take(found.event, marker);
        at += found.size;
        continue;
      }
      if (found.undecided && !final) {
        break;
      }
      at += Text(rest.substr(0, 1));
      continue;
    }
    std::size_t size = 1;
    if (state_ == State::kReasoning || state_ == State::kContent) {
      while (size < rest.size() && !active.MayBegin(rest[size])) {
        ++size;
      }
    }
    at += Text(rest.substr(0, size));
  }
  buffer_.erase(0, at);
}

void MarkerParser::Take(int event, std::string_view marker) {
  switch (event) {
    case kReasonStart:
      writer_.DropSpace();
      state_ = State::kReasoning;
      skip_space_ = true;
      return;
    case kReasonEnd:
      writer_.DropSpace();
      state_ = State::kContent;
      skip_space_ = true;
      return;
    case kSectionStart:
      raw_ = marker;
      inside_section_ = true;
      calls_before_section_ = writer_.calls();
      state_ = State::kSection;
      return;
    case kStart:
      return BeginCall(marker, false);
    case kPassed:
      raw_ += marker;
      return;
    case kSectionEnd:
    case kEnd:
      break;
    default:
      return;
  }
  const bool ends_section = event == kSectionEnd;
  if (state_ == State::kCall) {
    CloseCall(marker);
  } else if (state_ == State::kSection && writer_.calls() == calls_before_section_) {
    return GiveUp(marker);
  } else {
    AfterCall();
  }
  if (ends_section && state_ == State::kSection) {
    state_ = State::kContent;
    inside_section_ = false;
  }
}

void MarkerParser::BeginCall(std::string_view marker, bool bare) {
  if (state_ != State::kSection) {
    raw_.clear();
    if (!calls_->section_start.empty() && !inside_section_) {  // the model left its marker out
      inside_section_ = true;
      calls_before_section_ = writer_.calls();
    }
  }
  raw_ += marker;
  body_ = MakeCallBody(*calls_, bare);
  state_ = State::kCall;
}

void MarkerParser::CloseCall(std::string_view marker) {
  if (body_->End(true, &writer_)) {
    AfterCall();
  } else {
    GiveUp(marker);
  }
}

void MarkerParser::AfterCall() {
  raw_.clear();
  body_.reset();
  after_call_ = true;
  skip_space_ = true;
  state_ = inside_section_ ? State::kSection : State::kContent;
}

void MarkerParser::GiveUp(std::string_view more) {
  std::string raw = std::exchange(raw_, {});
  raw += more;
  body_.reset();
  inside_section_ = false;
  after_call_ = false;
  skip_space_ = false;
  state_ = State::kContent;
  writer_.Content(raw);
}

std::size_t MarkerParser::Text(std::string_view text) {
  switch (state_) {
    case State::kReasoning:
      if (skip_space_) {
        const std::size_t begin = text.find_first_not_of(kSpace);
        if (begin == std::string_view::npos) {
          return text.size();
        }
        skip_space_ = false;
        writer_.Reasoning(text.substr(begin));
      } else {
        writer_.Reasoning(text);
      }
      return text.size();
    case State::kContent:
      return ContentText(text);
    case State::kSection:
      SectionText(text.front());
      return 1;
    case State::kCall:
      CallText(text.front());
      return 1;
    case State::kTail:
      TailText(text.front());
      return 1;
  }
  return text.size();
}

std::size_t MarkerParser::ContentText(std::string_view text) {
  std::size_t at = 0;
  if (!writer_.has_content() || skip_space_) {
    const std::string_view passed = after_call_ ? Trim(calls_->separator) : std::string_view();
    while (at < text.size() &&
           (IsSpace(text[at]) || passed.find(text[at]) != std::string_view::npos)) {
      ++at;
    }
    if (!skip_space_) {
      writer_.Content(text.substr(0, at));
    }
    if (at == text.size()) {
      return at;
    }
    const bool opens = text[at] == '[' || (text[at] == '{' && calls_ != nullptr &&
                                           calls_->format == CallFormat::kJson);
    if (calls_ != nullptr && calls_->bare && opens) {
      BeginCall({}, true);
      CallText(text[at]);
      return at + 1;
    }
  }
  skip_space_ = false;
  after_call_ = false;
  writer_.Content(text.substr(at));
  return text.size();
}

void MarkerParser::SectionText(char c) {
  if (IsSpace(c)) {
    raw_ += c;
    return;
  }
  if (writer_.calls() > calls_before_section_) {
    raw_.clear();
  }
  GiveUp({&c, 1});
}

void MarkerParser::CallText(char c) {
  raw_ += c;
  const bool was_open = writer_.call_open();
  switch (body_->Push(c, &writer_)) {
    case CallBody::Status::kMore:
      break;
    case CallBody::Status::kDone:
      if (calls_->end.empty() && calls_->arguments_end.empty()) {
        AfterCall();
      } else {
        state_ = State::kTail;
      }
      break;
    case CallBody::Status::kBroken: {
      if (was_open) {
        writer_.EndCall();
        raw_ = body_->Rest(c);
      }
      return GiveUp({});
    }
  }
  if (writer_.call_open()) {
    raw_.clear();
  }
}

void MarkerParser::TailText(char c) {
  if (IsSpace(c) || c == '}' || c == ']' || c == ',') {
    return;
  }
  raw_.clear();
  if (c == '{' && calls_->format == CallFormat::kJson) {
    BeginCall({}, false);
    return CallText(c);
  }
  GiveUp({&c, 1});
}

void MarkerParser::Finish(std::vector<OutputDelta>* out) {
  writer_.SetOutput(out);
  Run(true);
  if (writer_.full()) {
    writer_.DropSpace();
  } else if (state_ == State::kCall) {
    const bool was_open = writer_.call_open();
    if (!body_->End(false, &writer_) && !was_open) {
      GiveUp({});
    }
  } else if (state_ == State::kSection && writer_.calls() == calls_before_section_) {
    GiveUp({});
  }
  if (state_ == State::kReasoning) {
    writer_.DropSpace();
  }
  writer_.FlushSpace();
  writer_.SetOutput(nullptr);
}

}  // namespace inferd::text
