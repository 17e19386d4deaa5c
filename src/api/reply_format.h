// SPDX-License-Identifier: Apache-2.0
// How a generation looks on the wire: one implementation per API. Implementations are immutable
// after construction and append to a buffer of the caller; they hold no state of a choice.
#pragma once

#include "leader/inference_service.h"
#include "spec/step.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace inferd::api {

/// Logprobs of one token of a reply (or of an echoed prompt, whose first token has none).
struct LogprobItem {
  std::int32_t token = 0;
  bool known = true;
  float logprob = 0;
  std::vector<spec::TokenLogprob> top;
  std::int64_t text_offset = 0;  // characters of the choice's text before this token
};

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;
};

/// What stopped a choice beside the model's own end token: nothing, a stop string, a stop token id.
using StopReason = std::variant<std::monostate, std::string, std::int32_t>;

/// New output of one choice (streamed), or all of it (not streamed).
struct ReplyPiece {
  std::int32_t index = 0;
  std::string_view text;
  std::span<const LogprobItem> logprobs;
  leader::FinishReason finish = leader::FinishReason::kNone;
  const StopReason* stop_reason = nullptr;  // never null with a finish
};

class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;

  /// The event that opens choice `index` of a stream; may append nothing.
  virtual void AppendOpening(std::int32_t index, std::string* out) const = 0;
  /// One event of a stream.
  virtual void AppendPiece(const ReplyPiece& piece, std::string* out) const = 0;
  /// The event that carries the usage of the whole stream.
  virtual void AppendUsage(const Usage& usage, std::string* out) const = 0;
  /// The whole answer as one JSON object.
  virtual void AppendFull(std::span<const ReplyPiece> choices,
                          const Usage& usage,
                          std::string* out) const = 0;
};

/// "stop", "length", ... as OpenAI's `finish_reason`.
std::string_view FinishName(leader::FinishReason finish);
/// {"prompt_tokens":..}
void AppendUsageObject(const Usage& usage, std::string* out);
/// ,"finish_reason":..,"stop_reason":..
void AppendFinish(const ReplyPiece& piece, std::string* out);

}  // namespace inferd::api
