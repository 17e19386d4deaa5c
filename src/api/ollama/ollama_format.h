// SPDX-License-Identifier: Apache-2.0
// Ollama's answers: one JSON object, or a stream of them, one a line.
#pragma once

#include "api/core/reply_format.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace inferd::api {

/// "2025-01-31T12:00:00.123456Z"
std::string OllamaTime(std::int64_t unix_us);
std::string OllamaTimeNow();

class OllamaFormat final : public ReplyFormat {
 public:
  enum class Shape { kChat, kGenerate };
  OllamaFormat(Shape shape, std::string_view model);

  std::string_view stream_content_type() const override { return "application/x-ndjson"; }
  void AppendOpening(const ReplyPiece& piece, std::string* out) override;
  void AppendPiece(const ReplyPiece& piece, std::string* out) override;
  void AppendEnd(const Usage& usage, bool usage_asked, std::string* out) override;
  void AppendFailure(const Error& error, std::string* out) override;
  void AppendFull(std::span<const ReplyPiece> choices,
                  const Usage& usage,
                  std::string* out) override;
  std::string FailureBody(const Error& error) const override;

 private:
  /// What one line says.
  struct Said {
    std::string_view content;
    std::string_view thinking;
    std::string_view calls;  // as JSON, with commas between
  };
  void BeginLine(const Said& said, std::string* out) const;
  void AppendLine(const Said& said, std::string* out) const;
  void AppendDone(const Usage& usage, std::string* out) const;
  void CloseCall();

  Shape shape_;
  std::string model_;  // {"model":..,"created_at":
  leader::FinishReason finish_ = leader::FinishReason::kNone;
  struct Call {
    std::string id;
    std::string name;
    std::string arguments;
  };
  std::optional<Call> call_;  // being written: calls are sent whole
  std::string calls_;         // written, not sent
  std::int64_t num_calls_ = 0;
};

}  // namespace inferd::api
