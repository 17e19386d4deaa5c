// SPDX-License-Identifier: Apache-2.0
// chat.completion and chat.completion.chunk objects.
#pragma once

#include "api/core/reply_format.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace inferd::api {

class ChatFormat final : public ReplyFormat {
 public:
  /// `logprobs`: the client asked for them. `tools`: it offered some, so the reply may have no
  /// content.
  ChatFormat(std::string_view id,
             std::string_view model,
             std::int64_t created_s,
             bool logprobs,
             bool tools,
             std::shared_ptr<const text::Tokenizer> tokenizer);

  std::string_view id() const override { return id_; }
  void AppendOpening(std::int32_t index, std::string* out) override;
  void AppendPiece(const ReplyPiece& piece, std::string* out) override;
  void AppendEnd(const Usage& usage, bool usage_asked, std::string* out) override;
  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;

 private:
  void AppendDelta(const ReplyPiece& piece, std::string* out) const;
  void AppendMessage(const ReplyPiece& choice, std::string* out) const;
  void AppendLogprobs(std::span<const LogprobItem> items, std::string* out) const;
  void AppendToken(std::int32_t token, float logprob, std::string* out) const;

  std::string id_;
  std::string common_;         // {"id":..,"object":"
  std::string created_model_;  // ","created":..,"model":..,"choices":[
  bool logprobs_;
  bool tools_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
};

}  // namespace inferd::api
