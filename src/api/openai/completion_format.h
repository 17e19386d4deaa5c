// SPDX-License-Identifier: Apache-2.0
// text_completion objects, with the classic form of logprobs.
#pragma once

#include "api/core/reply_format.h"
#include "api/openai/token_report.h"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace inferd::api {

class CompletionFormat final : public ReplyFormat {
 public:
  explicit CompletionFormat(OpenAiReply reply);

  std::string_view id() const override { return reply_.id; }
  void AppendOpening(const ReplyPiece& piece, std::string* out) override;
  void AppendPiece(const ReplyPiece& piece, std::string* out) override;
  void AppendEnd(const Usage& usage, bool usage_asked, std::string* out) override;
  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;

 private:
  void AppendChoice(const ReplyPiece& piece, std::string* out) const;
  void AppendLogprobs(std::span<const LogprobItem> items, std::string* out) const;
  void AppendTop(const LogprobItem& item, std::string* out) const;

  const OpenAiReply reply_;
  std::map<std::int32_t, const PromptReport*> prompts_;  // of choices whose stream has not begun
  std::string common_;  // {"id":..,"object":"text_completion","created":..,"model":..,"choices":[
};

}  // namespace inferd::api
