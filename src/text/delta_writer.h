// SPDX-License-Identifier: Apache-2.0
// What the parsers of all dialects do with what they have found: deltas, call numbers and ids.
#pragma once

#include "text/call_body.h"
#include "text/dialect_parser.h"
#include "text/output_parser.h"

#include <string>
#include <string_view>
#include <vector>

namespace inferd::text {

class DeltaWriter final : public CallSink {
 public:
  explicit DeltaWriter(const ParserOptions& options) : options_(options) {}

  /// Where deltas go until the next call; null: nowhere.
  void SetOutput(std::vector<OutputDelta>* out) { out_ = out; }

  void Content(std::string_view text);
  void Reasoning(std::string_view text);
  /// White space at the end of content or reasoning; written if more text of its kind follows.
  void FlushSpace();
  void DropSpace() { space_.clear(); }

  bool KnowsTool(std::string_view name) const override;
  std::uint8_t TypesOf(std::string_view tool, std::string_view parameter) const override;
  void BeginCall(std::string_view name, std::string_view id) override;
  void AddArguments(std::string_view json) override;
  void EndCall() override;

  int calls() const { return calls_; }
  bool call_open() const { return open_; }
  /// The last allowed call is complete.
  bool full() const { return options_.max_calls > 0 && !open_ && calls_ >= options_.max_calls; }
  bool has_content() const { return has_content_; }

 private:
  void Text(OutputDelta::Kind kind, std::string_view text);
  void Add(OutputDelta::Kind kind, std::int32_t call, std::string_view text);

  const ParserOptions& options_;
  std::vector<OutputDelta>* out_ = nullptr;
  OutputDelta::Kind space_kind_ = OutputDelta::Kind::kContent;
  std::string space_;
  int calls_ = 0;
  bool open_ = false;
  bool has_arguments_ = false;
  bool has_content_ = false;  // other than white space
};

/// "call_" and 24 letters and digits, or nine of them.
std::string NewCallId(bool nine_characters);

}  // namespace inferd::text
