// SPDX-License-Identifier: Apache-2.0
// The parser of replies that are several messages, each with a channel and perhaps a recipient
// (harmony): <|start|>assistant<|channel|>analysis<|message|>..<|end|>.
#pragma once

#include "text/delta_writer.h"
#include "text/dialect_parser.h"
#include "text/json_stream.h"
#include "text/marker_scan.h"
#include "text/output_parser.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::text {

class ChannelParser final : public OutputParser {
 public:
  /// `options` outlive the parser. `begun`: the unfinished message with which the prompt ends.
  ChannelParser(const ParserOptions& options, std::string_view begun);

  void Push(std::string_view text, std::vector<OutputDelta>* out) override;
  void Finish(std::vector<OutputDelta>* out) override;
  bool in_reasoning() const override { return state_ == State::kReasoning; }
  bool ended() const override { return writer_.full(); }

 private:
  enum class State : std::uint8_t { kHeader, kReasoning, kContent, kCall };

  void Run(bool final);
  void Take(std::string_view marker);
  void Text(std::string_view text);
  void CallText(char c);
  void BeginMessage();
  void EndMessage();
  void ClearHeader();

  const ParserOptions& options_;
  DeltaWriter writer_;
  MarkerSet markers_;
  State state_ = State::kHeader;
  std::string buffer_;
  std::string header_;     // with its markers
  std::size_t given_ = 0;  // bytes of it that the prompt held
  std::string tool_;
  JsonValue arguments_;
  bool call_begun_ = false;
  bool call_done_ = false;
  bool skip_space_ = false;
};

}  // namespace inferd::text
