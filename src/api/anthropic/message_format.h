// SPDX-License-Identifier: Apache-2.0
// Anthropic's message objects and stream events.
#pragma once

#include "api/core/reply_format.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace inferd::api {

class MessageFormat final : public ReplyFormat {
 public:
  /// `max_tokens`: what the client allowed; a reply that was cut before it has filled the context.
  MessageFormat(std::string_view id, std::string_view model, std::int64_t max_tokens);

  std::string_view id() const override { return id_; }
  void AppendStart(const Usage& usage, std::string* out) override;
  void AppendOpening(const ReplyPiece& piece, std::string* out) override;
  void AppendPiece(const ReplyPiece& piece, std::string* out) override;
  void AppendEnd(const Usage& usage, bool usage_asked, std::string* out) override;
  void AppendFailure(const Error& error, std::string* out) override;
  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;
  std::string FailureBody(const Error& error) const override;

 private:
  using Kind = text::OutputDelta::Kind;
  void Switch(Kind kind, std::string_view id, std::string_view name, std::string* out);
  void CloseBlock(std::string* out);
  void AppendStop(std::int64_t completion_tokens, std::string* out) const;

  std::string id_;
  std::string head_;  // "id":..,"type":"message","role":"assistant","model":..
  std::int64_t max_tokens_;
  std::int64_t block_ = -1;   // index of the newest content block
  std::optional<Kind> open_;  // kind of the block that is open: content, reasoning or tool call
  // How the reply ended.
  leader::FinishReason finish_ = leader::FinishReason::kNone;
  std::optional<std::string> stop_sequence_;
  bool has_tool_calls_ = false;
  void Remember(const ReplyPiece& piece);
};

}  // namespace inferd::api
