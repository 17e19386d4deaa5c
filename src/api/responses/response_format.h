// SPDX-License-Identifier: Apache-2.0
// Response objects and the events of their streams. Keeps the response in the store as it grows:
// running from its first event on, then how it ended.
#pragma once

#include "api/core/reply_format.h"
#include "api/responses/response_store.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace inferd::api {

/// What the format is told of its request.
struct ResponseRequest {
  std::string id;
  std::int64_t created_s = 0;
  std::string echo;         // members of the response object that repeat the request, as JSON
  std::string input_items;  // what is stored beside the response
  std::string owner = {};   // who may see what is stored
};

class ResponseFormat final : public ReplyFormat {
 public:
  /// `store`: null, or outlives the format.
  ResponseFormat(ResponseRequest request, ResponseStore* store);
  /// A stream that never came to its end was left by its client.
  ~ResponseFormat() override;

  std::string_view id() const override { return request_.id; }
  void AppendStart(const Usage& usage, std::string* out) override;
  void AppendOpening(const ReplyPiece& piece, std::string* out) override;
  void AppendPiece(const ReplyPiece& piece, std::string* out) override;
  void AppendEnd(const Usage& usage, bool usage_asked, std::string* out) override;
  void AppendFailure(const Error& error, std::string* out) override;
  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;

 private:
  using Kind = text::OutputDelta::Kind;
  /// An output item that is being written.
  struct Item {
    Kind kind = Kind::kContent;  // content, reasoning or tool call
    std::string id;
    std::string call_id;
    std::string name;
    std::string text;  // or the arguments
  };

  void BeginEvent(std::string_view type, std::string* out);
  void BeginItemEvent(std::string_view type, std::string* out);
  void OpenItem(Kind kind, std::string_view call_id, std::string_view name);
  void OpenItemInStream(Kind kind,
                        std::string_view call_id,
                        std::string_view name,
                        std::string* out);
  void CloseItem(std::string_view status);
  void CloseItemInStream(std::string_view status, std::string* out);
  void AppendItem(std::string_view status, bool filled, std::string* out) const;
  void AppendPart(bool filled, std::string* out) const;
  std::string Response(std::string_view status, const Usage* usage, const Error* error) const;
  std::string_view Status() const;

  const ResponseRequest request_;
  ResponseStore* const store_;
  std::int64_t sequence_ = 0;
  std::optional<Item> open_;
  std::int64_t num_items_ = 0;  // finished ones
  std::string items_;           // the same, as JSON with commas between
  leader::FinishReason finish_ = leader::FinishReason::kNone;
  bool running_ = false;  // the store has it as such
};

}  // namespace inferd::api
