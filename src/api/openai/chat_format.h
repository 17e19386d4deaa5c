// SPDX-License-Identifier: Apache-2.0
// chat.completion and chat.completion.chunk objects.
#pragma once

#include "api/core/reply_format.h"
#include "api/openai/token_report.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace inferd::api {

class ChatFormat final : public ReplyFormat {
 public:
  explicit ChatFormat(OpenAiReply reply);

  std::string_view id() const override { return reply_.id; }
  void AppendOpening(const ReplyPiece& piece, std::string* out) override;
  void AppendPiece(const ReplyPiece& piece, std::string* out) override;
  void AppendEnd(const Usage& usage, bool usage_asked, std::string* out) override;
  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;

 private:
  void AppendDelta(const ReplyPiece& piece, std::string* out) const;
  void AppendMessage(const ReplyPiece& choice, std::string* out) const;
  void AppendLogprobs(std::span<const LogprobItem> items, std::string* out) const;
  void AppendTokenIds(const ReplyPiece& piece, std::string* out) const;
  void AppendPrompt(const ReplyPiece& piece, std::string* out) const;
  static void AppendUsage(const ReplyPiece& piece, std::string* out);
  void AppendToken(std::int32_t token, float logprob, std::string* out) const;

  const OpenAiReply reply_;
  std::string common_;         // {"id":..,"object":"
  std::string created_model_;  // ","created":..,"model":..,"choices":[
};

}  // namespace inferd::api
