// SPDX-License-Identifier: Apache-2.0
#include "api/core/generation.h"

#include "base/check.h"

#include <algorithm>
#include <utility>

namespace inferd::api {
namespace {

std::int64_t Characters(std::string_view utf8) {
  return std::count_if(utf8.begin(), utf8.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  });
}

}  // namespace

struct Generation::Choice {
  Choice(std::int32_t choice_index, const GenerationSpec& spec)
      : index(choice_index),
        detokenizer(spec.tokenizer,
                    {.skip_special = spec.skip_special, .shown = spec.marker_tokens}) {
    if (spec.stops != nullptr) {
      matcher.emplace(spec.stops, spec.include_stop);
    }
    if (spec.parsers != nullptr) {
      parser = spec.parsers->Make();
    }
  }

  std::int32_t index;
  text::IncrementalDetokenizer detokenizer;
  std::optional<text::StopMatcher> matcher;
  std::unique_ptr<text::OutputParser> parser;
  std::string text;                       // streams: not yet rendered; else all of it
  std::vector<text::OutputDelta> deltas;  // the same, when there is a parser
  std::vector<LogprobItem> logprobs;      // the same
  std::vector<std::int32_t> token_ids;    // the same, when they are asked for
  std::vector<float> embedding;
  std::int64_t tokens = 0;
  std::int64_t reasoning_tokens = 0;
  std::int64_t characters = 0;  // of the token texts so far, for text_offset
  std::int64_t last_token_ns = 0;
  leader::FinishReason finish = leader::FinishReason::kNone;
  StopReason stop_reason;
  bool has_tool_calls = false;
  bool begun = false;   // its first event was seen
  bool opened = false;  // its opening is rendered
  bool queued = false;  // in dirty_
};

Generation::Generation(GenerationSpec spec) : spec_(std::move(spec)) {
  choices_.reserve(spec_.requests.size() * static_cast<std::size_t>(spec_.n));
  for (std::size_t prompt = 0; prompt < spec_.requests.size(); ++prompt) {
    const auto& ids = spec_.requests[prompt].prompt;
    prompt_tokens_.push_back(static_cast<std::int64_t>(ids.size()));
    first_prompt_token_.push_back(ids.empty() ? -1 : ids.front());
    PromptReport& report = prompts_.emplace_back();
    report.ids_wanted = spec_.report.token_ids;
    report.scores_wanted = spec_.prompt_top >= 0;
    if (report.ids_wanted || report.scores_wanted) {
      report.ids = ids;
    }
    for (std::int32_t k = 0; k < spec_.n; ++k) {
      choices_.emplace_back(static_cast<std::int32_t>(choices_.size()), spec_);
    }
  }
  open_choices_ = choices_.size();
  if (!spec_.generate) {
    for (Choice& choice : choices_) {
      AddEcho(&choice, static_cast<std::size_t>(choice.index / spec_.n), false);
      EndChoice(&choice, leader::FinishReason::kLength, {});
    }
  }
}

Generation::~Generation() = default;

std::vector<leader::GenerateRequest> Generation::TakeRequests() {
  return spec_.generate ? std::move(spec_.requests) : std::vector<leader::GenerateRequest>();
}

void Generation::MarkDirty(Choice* choice) {
  if (spec_.stream && !choice->queued) {
    choice->queued = true;
    dirty_.push_back(choice);
  }
}

void Generation::AddText(Choice* choice, std::string_view text) {
  if (text.empty()) {
    return;
  }
  if (choice->parser != nullptr) {
    const std::size_t before = choice->deltas.size();
    choice->parser->Push(text, &choice->deltas);
    return AddDeltas(choice, before);
  }
  pending_bytes_ += text.size();
  choice->text += text;
  MarkDirty(choice);
}

/// Counts deltas[before..) and joins each with its forerunner where they are one text.
void Generation::AddDeltas(Choice* choice, std::size_t before) {
  auto& deltas = choice->deltas;
  std::size_t kept = before;
  for (std::size_t i = before; i < deltas.size(); ++i) {
    text::OutputDelta& delta = deltas[i];
    pending_bytes_ += delta.text.size();
    const bool begins = delta.kind == text::OutputDelta::Kind::kToolCall;
    choice->has_tool_calls |= begins;
    if (kept > 0 && !begins && deltas[kept - 1].kind == delta.kind &&
        deltas[kept - 1].call == delta.call) {
      deltas[kept - 1].text += delta.text;
    } else {
      if (kept != i) {
        deltas[kept] = std::move(delta);
      }
      ++kept;
    }
  }
  deltas.resize(kept);
  MarkDirty(choice);
}

void Generation::AddLogprob(Choice* choice, spec::SampledToken token) {
  const std::string text = text::MakeTokenText(*spec_.tokenizer, token.token).token;
  choice->logprobs.push_back({.token = token.token,
                              .logprob = token.logprob,
                              .top = std::move(token.top),
                              .text_offset = choice->characters});
  choice->characters += Characters(text);
  pending_bytes_ +=
      64 * (1 + choice->logprobs.back().top.size());  // about what it takes on the wire
  MarkDirty(choice);
}

/// `scored`: the prompt's scores are here, if any were asked for.
void Generation::AddEcho(Choice* choice, std::size_t prompt, bool scored) {
  if (!spec_.echo) {
    return;
  }
  if (spec_.logprobs && scored && first_prompt_token_[prompt] >= 0) {
    spec::SampledToken first;  // follows nothing, so it has no logprob
    first.token = first_prompt_token_[prompt];
    AddLogprob(choice, std::move(first));
    choice->logprobs.back().known = false;
    for (spec::SampledToken token : prompts_[prompt].scores) {
      token.top.resize(std::min(token.top.size(), static_cast<std::size_t>(spec_.echo_top)));
      AddLogprob(choice, std::move(token));
    }
  }
  AddText(choice, spec_.echoes[prompt]);
}

/// They come with the first event of a prompt's first choice, before all of the other choices'.
void Generation::TakePromptScores(std::size_t prompt, std::vector<spec::SampledToken> scores) {
  if (static_cast<std::int64_t>(scores.size()) == prompt_tokens_[prompt] && !scores.empty()) {
    scores.erase(scores.begin());  // the engine may leave the first token out or send it unscored
  }
  prompts_[prompt].scores = std::move(scores);
}

/// The engine gives as many alternatives as echo or prompt_logprobs ask for, whichever is more.
void Generation::CutPromptScores() {
  if (spec_.prompt_top < 0) {
    return;
  }
  for (PromptReport& report : prompts_) {
    for (spec::SampledToken& score : report.scores) {
      score.top.resize(std::min(score.top.size(), static_cast<std::size_t>(spec_.prompt_top)));
    }
  }
}

void Generation::EndChoice(Choice* choice, leader::FinishReason finish, StopReason reason) {
  if (choice->parser != nullptr) {
    const std::size_t before = choice->deltas.size();
    choice->parser->Finish(&choice->deltas);
    AddDeltas(choice, before);
  }
  choice->finish = finish;
  choice->stop_reason = std::move(reason);
  --open_choices_;
  MarkDirty(choice);
}

/// The choice has said all that its request allows, which ends it.
bool Generation::EndIfComplete(Choice* choice) {
  if (choice->parser == nullptr || !choice->parser->ended()) {
    return false;
  }
  EndChoice(choice, leader::FinishReason::kStop, {});
  return true;
}

/// Runs new text past the stop strings; true when it ends the choice.
bool Generation::TakeText(Choice* choice, const std::string& delta) {
  if (!choice->matcher) {
    AddText(choice, delta);
    return EndIfComplete(choice);
  }
  const std::int64_t min_tokens = spec_.min_tokens;
  auto output = choice->matcher->Push(delta, min_tokens == 0 || choice->tokens > min_tokens);
  AddText(choice, output.text);
  if (EndIfComplete(choice)) {
    return true;
  }
  if (!output.matched) {
    return false;
  }
  EndChoice(choice, leader::FinishReason::kStop, spec_.stop_strings[*output.matched]);
  return true;
}

/// The choice ends: takes what was kept back. True when that ended it by a stop string.
bool Generation::TakeHeldText(Choice* choice) {
  if (TakeText(choice, choice->detokenizer.Finish())) {
    return true;
  }
  if (choice->matcher) {
    AddText(choice, choice->matcher->Finish());
  }
  return false;
}

void Generation::Abort() {
  for (Choice& choice : choices_) {
    if (!failure_ && choice.finish == leader::FinishReason::kNone && !TakeHeldText(&choice)) {
      EndChoice(&choice, leader::FinishReason::kCancelled, {});
    }
  }
}

bool Generation::TakeToken(Choice* choice, leader::OutputEvent* event, std::int64_t now_ns) {
  ++choice->tokens;
  choice->reasoning_tokens += choice->parser != nullptr && choice->parser->in_reasoning() ? 1 : 0;
  if (spec_.metrics != nullptr) {
    if (choice->last_token_ns == 0) {
      spec_.metrics->time_to_first_token.Observe(now_ns - spec_.arrived_ns);
    } else {
      spec_.metrics->inter_token_latency.Observe(now_ns - choice->last_token_ns);
    }
  }
  first_token_ns_ = first_token_ns_ == 0 ? now_ns : first_token_ns_;
  choice->last_token_ns = now_ns;
  const std::int32_t token = event->token->token;
  if (spec_.report.token_ids) {
    choice->token_ids.push_back(token);
    pending_bytes_ += 8;
    MarkDirty(choice);
  }
  if (spec_.logprobs) {
    AddLogprob(choice, std::move(*event->token));
  }
  const bool is_end = event->finish == leader::FinishReason::kStop && event->stop_token >= 0;
  if (is_end && !spec_.include_stop) {
    return false;
  }
  return TakeText(choice, choice->detokenizer.Push(token));
}

std::optional<std::int32_t> Generation::OnEvent(std::size_t prompt,
                                                leader::OutputEvent event,
                                                std::int64_t now_ns) {
  INFERD_CHECK(event.choice >= 0 && event.choice < spec_.n && prompt < prompt_tokens_.size());
  Choice& choice =
      choices_[prompt * static_cast<std::size_t>(spec_.n) + static_cast<std::size_t>(event.choice)];
  if (choice.finish != leader::FinishReason::kNone || failure_) {
    return std::nullopt;
  }
  if (event.finish == leader::FinishReason::kError ||
      event.finish == leader::FinishReason::kCancelled) {
    Error error =
        event.error.value_or(Error(Code::kInternal, "The request was ended by the server"));
    Fault fault;
    if (error.code() == Code::kDeadlineExceeded && !choice.begun) {
      fault.reason = "queue_deadline";
    }
    Fail(std::move(error), std::move(fault));
    return std::nullopt;
  }
  if (!choice.begun) {
    choice.begun = true;
    if (event.choice == 0) {
      cached_tokens_ += event.cached_tokens;
    }
    if (admitted_ns_ == 0) {
      admitted_ns_ = event.admitted_ns;
    }
    if (event.choice == 0) {
      TakePromptScores(prompt, std::move(event.prompt_logprobs));
    }
    AddEcho(&choice, prompt, true);
    MarkDirty(&choice);
  }
  choice.embedding = std::move(event.embedding);
  if (event.token && TakeToken(&choice, &event, now_ns)) {
    return event.finish == leader::FinishReason::kNone ? std::optional(event.choice) : std::nullopt;
  }
  if (event.finish == leader::FinishReason::kNone) {
    return std::nullopt;
  }
  if (TakeHeldText(&choice)) {
    return std::nullopt;
  }
  StopReason reason;
  if (event.finish == leader::FinishReason::kStop &&
      std::find(spec_.stop_token_ids.begin(), spec_.stop_token_ids.end(), event.stop_token) !=
          spec_.stop_token_ids.end()) {
    reason = event.stop_token;
  }
  EndChoice(&choice, event.finish, std::move(reason));
  return std::nullopt;
}

void Generation::Fail(Error error, Fault fault) {
  if (!done()) {
    failure_ = std::move(error);
    fault_ = std::move(fault);
  }
}

Usage Generation::usage() const {
  Usage usage;
  for (const auto tokens : prompt_tokens_) {
    usage.prompt_tokens += tokens;
  }
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.tokens;
    usage.reasoning_tokens += choice.reasoning_tokens;
  }
  usage.cached_tokens = cached_tokens_;
  if (first_token_ns_ != 0) {
    usage.prompt_ns = first_token_ns_ - spec_.arrived_ns;
    for (const Choice& choice : choices_) {
      usage.completion_ns = std::max(usage.completion_ns, choice.last_token_ns - first_token_ns_);
    }
  }
  return usage;
}

void Generation::RenderStream(std::string* out) {
  if (!started_) {
    started_ = true;
    CutPromptScores();
    spec_.format->AppendStart(usage(), out);
  }
  for (Choice* choice : dirty_) {
    choice->queued = false;
    if (!choice->opened) {
      choice->opened = true;
      const Usage nothing_yet = UsageOf(*choice);
      ReplyPiece opening;
      opening.index = choice->index;
      opening.prompt = PromptOf(*choice);
      opening.usage = spec_.continuous_usage ? &nothing_yet : nullptr;
      spec_.format->AppendOpening(opening, out);
    }
    if (choice->text.empty() && choice->deltas.empty() && choice->logprobs.empty() &&
        choice->token_ids.empty() && choice->finish == leader::FinishReason::kNone) {
      continue;
    }
    ReplyPiece piece = PieceOf(*choice);
    const Usage used = UsageOf(*choice);
    piece.prompt = nullptr;  // it went out with the opening
    piece.usage = spec_.continuous_usage ? &used : nullptr;
    spec_.format->AppendPiece(piece, out);
    choice->token_ids.clear();
    choice->text.clear();
    choice->deltas.clear();
    choice->logprobs.clear();
  }
  dirty_.clear();
  pending_bytes_ = 0;
  if (!done() || closed_) {
    return;
  }
  closed_ = true;
  if (failure_) {
    spec_.format->AppendFailure(*failure_, out);
  } else {
    spec_.format->AppendEnd(usage(), spec_.include_usage, out);
  }
}

const PromptReport* Generation::PromptOf(const Choice& choice) const {
  const PromptReport& report = prompts_[static_cast<std::size_t>(choice.index / spec_.n)];
  return report.ids_wanted || report.scores_wanted ? &report : nullptr;
}

Usage Generation::UsageOf(const Choice& choice) const {
  Usage used;
  used.prompt_tokens = prompt_tokens_[static_cast<std::size_t>(choice.index / spec_.n)];
  used.completion_tokens = choice.tokens;
  used.reasoning_tokens = choice.reasoning_tokens;
  return used;
}

ReplyPiece Generation::PieceOf(const Choice& choice) const {
  return {.index = choice.index,
          .text = choice.text,
          .deltas = choice.deltas,
          .logprobs = choice.logprobs,
          .embedding = choice.embedding,
          .token_ids = choice.token_ids,
          .prompt = PromptOf(choice),
          .finish = choice.finish,
          .stop_reason = &choice.stop_reason,
          .has_tool_calls = choice.has_tool_calls};
}

void Generation::RenderFull(std::string* out) {
  CutPromptScores();
  std::vector<ReplyPiece> pieces;
  pieces.reserve(choices_.size());
  for (const Choice& choice : choices_) {
    pieces.push_back(PieceOf(choice));
  }
  spec_.format->AppendFull(pieces, usage(), out);
}

void Generation::Settle(std::int64_t now_ns, bool client_left) {
  if (spec_.admission == nullptr) {
    return;
  }
  const auto ms_since_arrival = [this](std::int64_t ns) {
    return ns == 0 ? std::int64_t{-1} : (ns - spec_.arrived_ns) / 1'000'000;
  };
  const Usage used = usage();
  const bool complete = done() && !failure_;
  tenant::Usage settled{.prompt_tokens = used.prompt_tokens,
                        .cached_tokens = used.cached_tokens,
                        .completion_tokens = used.completion_tokens,
                        .reasoning_tokens = used.reasoning_tokens,
                        .queue_ms = ms_since_arrival(admitted_ns_),
                        .ttft_ms = ms_since_arrival(first_token_ns_),
                        .total_ms = ms_since_arrival(now_ns),
                        .outcome = complete      ? tenant::UsageOutcome::kDone
                                   : client_left ? tenant::UsageOutcome::kClientLeft
                                                 : tenant::UsageOutcome::kFailed};
  if (failure_ && first_token_ns_ == 0) {
    settled.prompt_tokens = 0;  // the model was never reached, or gave nothing for it
  }
  spec_.admission->Settle(settled);
}

void Generation::EndSpan(std::int64_t now_ns, bool client_left) {
  if (spec_.span == nullptr) {
    return;
  }
  RequestSpan& span = spec_.span->span();
  const auto since_arrival = [this](std::int64_t ns) {
    return ns == 0 ? std::int64_t{-1} : ns - spec_.arrived_ns;
  };
  const Usage used = usage();
  span.reply_id = spec_.format->id();
  span.input_tokens = used.prompt_tokens;
  span.cached_tokens = used.cached_tokens;
  span.output_tokens = used.completion_tokens;
  span.reasoning_tokens = used.reasoning_tokens;
  span.queue_ns = since_arrival(admitted_ns_);
  span.first_token_ns = since_arrival(first_token_ns_);
  span.total_ns = since_arrival(now_ns);
  span.error = failure_;
  if (client_left && !done()) {
    span.error = Error(Code::kCancelled, "the client left");
  }
  for (const Choice& choice : choices_) {
    if (choice.finish != leader::FinishReason::kNone) {
      span.finish_reasons.emplace_back(choice.has_tool_calls ? "tool_calls"
                                                             : FinishName(choice.finish));
    }
  }
  spec_.span.reset();
}

void Generation::Record(std::int64_t now_ns, bool client_left) {
  Settle(now_ns, client_left);
  EndSpan(now_ns, client_left);
  if (spec_.metrics == nullptr) {
    return;
  }
  Metrics& metrics = *spec_.metrics;
  for (const Choice& choice : choices_) {
    leader::FinishReason finish = choice.finish;
    if (finish == leader::FinishReason::kNone) {
      finish = client_left ? leader::FinishReason::kCancelled : leader::FinishReason::kError;
    }
    metrics.CountFinish(finish);
    if (choice.tokens > 1 && choice.last_token_ns > first_token_ns_) {
      metrics.time_per_output_token.Observe((choice.last_token_ns - first_token_ns_) /
                                            (choice.tokens - 1));
    }
    metrics.generation_tokens_per_request.Add(choice.tokens);
  }
  for (const auto tokens : prompt_tokens_) {
    metrics.prompt_tokens_per_request.Add(tokens);
  }
  if (done() && !failure_) {
    metrics.e2e_latency.Observe(now_ns - spec_.arrived_ns);
  }
}

}  // namespace inferd::api
