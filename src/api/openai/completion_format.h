// SPDX-License-Identifier: Apache-2.0
// text_completion objects, with the classic form of logprobs.
#pragma once

#include "api/core/reply_format.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace inferd::api {

class CompletionFormat final : public ReplyFormat {
 public:
  CompletionFormat(std::string_view id,
                   std::string_view model,
                   std::int64_t created_s,
                   bool logprobs,
                   std::shared_ptr<const text::Tokenizer> tokenizer);

  std::string_view id() const override { return id_; }
  void AppendOpening(std::int32_t index, std::string* out) override;
  void AppendPiece(const ReplyPiece& piece, std::string* out) override;
  void AppendEnd(const Usage& usage, bool usage_asked, std::string* out) override;
  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;

 private:
  void AppendChoice(const ReplyPiece& piece, std::string* out) const;
  void AppendLogprobs(std::span<const LogprobItem> items, std::string* out) const;
  void AppendTop(const LogprobItem& item, std::string* out) const;

  std::string id_;
  std::string common_;  // {"id":..,"object":"text_completion","created":..,"model":..,"choices":[
  bool logprobs_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
};

}  // namespace inferd::api
