// SPDX-License-Identifier: Apache-2.0
// How a generation looks on the wire: one implementation per API, one object per generation. It
// appends to a buffer of the caller and may remember what it has written (an open content block).
#pragma once

#include "inferd/result.h"
#include "leader/inference_service.h"
#include "spec/step.h"
#include "text/output_parser.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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
  std::int64_t reasoning_tokens = 0;  // part of completion_tokens
  std::int64_t prompt_ns = 0;         // from arrival to the first token
  std::int64_t completion_ns = 0;     // from the first token to the last one
};

/// What stopped a choice beside the model's own end token: nothing, a stop string, a stop token id.
using StopReason = std::variant<std::monostate, std::string, std::int32_t>;

/// What the answer tells beside the text.
struct ReplyReport {
  bool token_ids = false;      // of prompt and output
  bool tokens_as_ids = false;  // logprobs name tokens by id
  bool timings = false;
};

/// What a client wants to know of its prompt.
struct PromptReport {
  bool ids_wanted = false;
  bool scores_wanted = false;
  std::vector<std::int32_t> ids;
  /// Of the tokens behind the first one, which follows nothing.
  std::vector<spec::SampledToken> scores;
};

/// New output of one choice (streamed), or all of it (not streamed).
struct ReplyPiece {
  std::int32_t index = 0;
  /// Content of a request without an output parser.
  std::string_view text;
  /// Content, reasoning and tool calls in their order, of a request with one; `text` is empty then.
  std::span<const text::OutputDelta> deltas;
  std::span<const LogprobItem> logprobs;
  std::span<const float> embedding;         // of a request for one: [hidden], not normalised
  std::span<const std::int32_t> token_ids;  // generated, when asked for
  /// Null: nothing was asked. Streamed: with a choice's opening only.
  const PromptReport* prompt = nullptr;
  const Usage* usage = nullptr;  // of the choice so far, when asked for with every piece
  leader::FinishReason finish = leader::FinishReason::kNone;
  const StopReason* stop_reason = nullptr;  // never null with a finish
  bool has_tool_calls = false;              // the choice made at least one, now or before
};

/// Calls visit(kind, id, text) for each part of the piece, whether or not it was parsed; `id` is
/// that of a call which begins.
template <class F>
void VisitParts(const ReplyPiece& piece, F&& visit) {
  if (!piece.text.empty()) {
    visit(text::OutputDelta::Kind::kContent, std::string_view(), piece.text);
  }
  for (const text::OutputDelta& delta : piece.deltas) {
    if (!delta.text.empty() || delta.kind == text::OutputDelta::Kind::kToolCall) {
      visit(delta.kind, std::string_view(delta.id), std::string_view(delta.text));
    }
  }
}

/// Owner: the generation; called on its thread only.
class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;

  /// Of the reply; its generation can be aborted by it. Empty: it has none.
  virtual std::string_view id() const { return {}; }
  /// Of a stream, and of a whole answer.
  virtual std::string_view stream_content_type() const {
    return "text/event-stream; charset=utf-8";
  }
  virtual std::string_view full_content_type() const { return "application/json"; }
  /// Further headers of a whole answer; asked once it is rendered.
  virtual std::vector<std::pair<std::string, std::string>> full_headers() const { return {}; }

  /// Before anything else of a stream; `usage` knows the prompt only. May append nothing.
  virtual void AppendStart(const Usage& usage, std::string* out);
  /// The event that opens a choice of a stream; may append nothing. Only the piece's index, prompt
  /// and usage are set.
  virtual void AppendOpening(const ReplyPiece& piece, std::string* out) = 0;
  /// One event of a stream.
  virtual void AppendPiece(const ReplyPiece& piece, std::string* out) = 0;
  /// What ends a stream after the last piece; `usage_asked`: the client wants the usage event.
  virtual void AppendEnd(const Usage& usage, bool usage_asked, std::string* out) = 0;
  /// What ends a stream that has failed after it began.
  virtual void AppendFailure(const Error& error, std::string* out);
  /// The whole answer.
  virtual void AppendFull(std::span<const ReplyPiece> choices,
                          const Usage& usage,
                          std::string* out) = 0;
  /// The body of an answer that failed before it began.
  virtual std::string FailureBody(const Error& error) const;
};

/// Of an answer that is never streamed.
class UnstreamedFormat : public ReplyFormat {
 public:
  void AppendOpening(const ReplyPiece& /*piece*/, std::string* /*out*/) final {}
  void AppendPiece(const ReplyPiece& /*piece*/, std::string* /*out*/) final {}
  void AppendEnd(const Usage& /*usage*/, bool /*usage_asked*/, std::string* /*out*/) final {}
};

/// "stop", "length", ... as OpenAI's `finish_reason`; "tool_calls" for a choice that made some.
std::string_view FinishName(leader::FinishReason finish);
/// {"prompt_tokens":..}
void AppendUsageObject(const Usage& usage, std::string* out);
/// The arguments of a tool call as an object. What a model wrote that is none becomes
/// {"INVALID_JSON": text}, as Anthropic advises to pass on such input.
void AppendArguments(std::string_view arguments, std::string* out);
/// ,"finish_reason":..,"stop_reason":..
void AppendFinish(const ReplyPiece& piece, std::string* out);

}  // namespace inferd::api
