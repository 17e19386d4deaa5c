// SPDX-License-Identifier: Apache-2.0
// One client request that generates: its prompts, the text state of its choices, and what is not
// yet on the wire. Made on a request thread, then owned and touched by one I/O thread only; knows
// nothing of sockets.
#pragma once

#include "api/core/error_map.h"
#include "api/core/metrics.h"
#include "api/core/reply_format.h"
#include "api/core/request_span.h"
#include "inferd/result.h"
#include "leader/inference_service.h"
#include "tenant/gate.h"
#include "text/detokenizer.h"
#include "text/output_parser.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

/// What a handler has made of a request. `requests` has one entry per prompt; stream and sink are
/// filled in by the I/O thread. All prompts share sampling and n.
struct GenerationSpec {
  std::vector<leader::GenerateRequest> requests;
  std::vector<std::string> echoes;  // per prompt: text that is put before the reply; empty: no echo
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::vector<std::string> stop_strings;
  std::shared_ptr<const text::StopStrings> stops;  // of stop_strings; null: none
  std::unique_ptr<ReplyFormat> format;
  /// Tells reasoning and tool calls from content; null: all text is content.
  std::shared_ptr<const text::OutputParserFactory> parsers;
  std::shared_ptr<const std::vector<bool>> marker_tokens;  // control tokens it needs to see
  std::vector<std::int32_t> stop_token_ids;
  std::int32_t min_tokens = 0;
  std::int32_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool include_stop = false;  // include_stop_str_in_output
  bool skip_special = true;
  bool logprobs = false;
  bool echo = false;
  ReplyReport report;
  bool continuous_usage = false;  // stream_options.continuous_usage_stats
  std::int32_t echo_top = 0;      // of each echoed token, this many of the best
  std::int32_t prompt_top = -1;   // the same for prompt_logprobs; -1: not asked for
  bool generate = true;           // false: max_tokens is 0 and nothing is asked of the model
  std::int64_t arrived_ns = 0;    // steady clock
  Metrics* metrics = nullptr;     // outlives the generation; null in some tests
  std::shared_ptr<tenant::Admission> admission;  // settled by Record; null: nobody keeps count
  std::shared_ptr<OpenSpan> span;                // filled in by Record; null: not traced
};

class Generation {
 public:
  explicit Generation(GenerationSpec spec);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// For submission: one per prompt, with the prompt moved out. Call once.
  std::vector<leader::GenerateRequest> TakeRequests();

  /// Takes an event of prompt `prompt`. The number of a choice that the engine shall stop is
  /// returned (a stop string was found in its text). Events of finished choices are ignored.
  std::optional<std::int32_t> OnEvent(std::size_t prompt,
                                      leader::OutputEvent event,
                                      std::int64_t now_ns);
  /// Ends all choices with what they have said so far; the caller ends them on the engine's side.
  void Abort();
  /// Ends everything with an error that did not come as an event.
  void Fail(Error error, Fault fault = {});

  bool stream() const { return spec_.stream; }
  bool done() const { return failure_.has_value() || open_choices_ == 0; }
  /// There is something to render (streams only).
  bool dirty() const { return !dirty_.empty() || (done() && !closed_); }
  /// Set when it has ended by an error; a stream that has begun carries it as an event.
  const std::optional<Error>& failure() const { return failure_; }
  const Fault& fault() const { return fault_; }  // of failure()
  /// Bytes of text that wait to be rendered.
  std::size_t pending_bytes() const { return pending_bytes_; }
  Usage usage() const;

  /// Appends the stream's events for all that is pending; after the last one also the stream's end.
  void RenderStream(std::string* out);
  /// Appends the whole answer; call when done() without failure().
  void RenderFull(std::string* out);
  /// How the answer looks, and its body when it has failed before its first byte.
  const ReplyFormat& format() const { return *spec_.format; }
  /// Observes the request's latencies and outcome, and settles its admission; called once, by the
  /// owner's thread, when the request is over.
  void Record(std::int64_t now_ns, bool client_left);

 private:
  struct Choice;
  bool TakeHeldText(Choice* choice);
  void EndChoice(Choice* choice, leader::FinishReason finish, StopReason reason);
  void AddLogprob(Choice* choice, spec::SampledToken token);
  void AddEcho(Choice* choice, std::size_t prompt, bool scored);
  void CutPromptScores();
  void TakePromptScores(std::size_t prompt, std::vector<spec::SampledToken> scores);
  void AddText(Choice* choice, std::string_view text);
  void AddDeltas(Choice* choice, std::size_t before);
  ReplyPiece PieceOf(const Choice& choice) const;
  const PromptReport* PromptOf(const Choice& choice) const;
  Usage UsageOf(const Choice& choice) const;
  void MarkDirty(Choice* choice);
  bool EndIfComplete(Choice* choice);
  bool TakeText(Choice* choice, const std::string& delta);
  bool TakeToken(Choice* choice, leader::OutputEvent* event, std::int64_t now_ns);
  void Settle(std::int64_t now_ns, bool client_left);
  void EndSpan(std::int64_t now_ns, bool client_left);

  GenerationSpec spec_;
  std::vector<Choice> choices_;                   // [prompts * n]
  std::vector<Choice*> dirty_;                    // with something to render, in order of arrival
  std::vector<std::int64_t> prompt_tokens_;       // [prompts]
  std::vector<std::int32_t> first_prompt_token_;  // [prompts], -1: empty
  std::vector<PromptReport> prompts_;             // [prompts]
  std::int64_t cached_tokens_ = 0;
  std::size_t open_choices_ = 0;
  std::size_t pending_bytes_ = 0;
  std::optional<Error> failure_;
  Fault fault_;
  bool started_ = false;  // the stream's start is rendered
  bool closed_ = false;   // the stream's end is rendered
  std::int64_t first_token_ns_ = 0;
  std::int64_t admitted_ns_ = 0;  // when the model took up the first choice
};

}  // namespace inferd::api
