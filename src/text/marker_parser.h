// SPDX-License-Identifier: Apache-2.0
// The parser of all dialects that mark reasoning and calls in running text.
#pragma once

#include "text/call_body.h"
#include "text/delta_writer.h"
#include "text/dialect_parser.h"
#include "text/marker_scan.h"
#include "text/output_parser.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::text {

/// States: reasoning <-> content -> section -> call -> tail (after the call's text, before its end
/// marker) -> section or content. Dialects without sections go from content to call.
class MarkerParser final : public OutputParser {
 public:
  /// `options` outlive the parser.
  MarkerParser(const ParserOptions& options, bool in_reasoning);

  void Push(std::string_view text, std::vector<OutputDelta>* out) override;
  void Finish(std::vector<OutputDelta>* out) override;
  bool in_reasoning() const override { return state_ == State::kReasoning; }
  bool ended() const override { return writer_.full(); }

 private:
  enum class State : std::uint8_t { kReasoning, kContent, kSection, kCall, kTail };
  enum Event : int { kReasonStart, kReasonEnd, kSectionStart, kSectionEnd, kStart, kEnd, kPassed };

  const MarkerSet& Active() const;
  void Run(bool final);
  void Take(int event, std::string_view marker);
  /// Text without a marker; returns how many bytes it took.
  std::size_t Text(std::string_view text);
  std::size_t ContentText(std::string_view text);
  void SectionText(char c);
  void CallText(char c);
  void TailText(char c);
  void BeginCall(std::string_view marker, bool bare);
  void AfterCall();
  void CloseCall(std::string_view marker);
  /// What was kept is no call: it becomes content.
  void GiveUp(std::string_view more);

  const ParserOptions& options_;
  const CallDialect* const calls_;  // null: off
  DeltaWriter writer_;
  MarkerSet in_reasoning_;
  MarkerSet at_beginning_;  // content, before any
  MarkerSet in_content_;
  MarkerSet in_section_;
  MarkerSet in_call_;
  MarkerSet in_tail_;
  MarkerSet nothing_;
  State state_;
  std::string buffer_;  // not yet decided
  std::string raw_;     // since the marker of what may become a call
  std::unique_ptr<CallBody> body_;
  bool inside_section_ = false;
  int calls_before_section_ = 0;
  bool skip_space_ = false;  // at the beginning of content after reasoning or a call
  bool after_call_ = false;
};

}  // namespace inferd::text
