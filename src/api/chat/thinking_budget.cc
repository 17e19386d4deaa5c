// SPDX-License-Identifier: Apache-2.0
#include "api/chat/thinking_budget.h"

#include "api/core/constraint_wraps.h"
#include "base/error.h"
#include "text/detokenizer.h"
#include "text/dialect.h"
#include "text/output_parser.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace inferd::api {
namespace {

/// What the clones of a request's constraint share.
struct ReasoningLimit {
  std::int64_t budget = 0;
  std::vector<std::int32_t> closing;  // ends the reasoning; never empty
  /// Not right behind the closing: it would begin reasoning anew. -1: none.
  std::int32_t reopening = -1;
  std::vector<std::int32_t> ignored_ends;  // end tokens under ignore_eos
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::OutputParserFactory> parsers;
  std::shared_ptr<const std::vector<bool>> shown;
  bool skip_special = true;
};

void Forbid(std::int32_t token, std::span<std::uint32_t> words) {
  const auto index = static_cast<std::size_t>(token);
  if (token >= 0 && index / 32 < words.size()) {
    words[index / 32] &= ~(1U << (index % 32));
  }
}

/// Reads the output as its parser does, and writes the closing once the budget is spent.
class BudgetConstraint final : public leader::TokenConstraint {
 public:
  /// `pristine`: null: everything may come.
  BudgetConstraint(std::shared_ptr<const ReasoningLimit> limit,
                   std::shared_ptr<const TokenConstraint> pristine)
      : limit_(std::move(limit)),
        pristine_(std::move(pristine)),
        detokenizer_(limit_->tokenizer,
                     {.skip_special = limit_->skip_special, .shown = limit_->shown}),
        parser_(limit_->parsers->Make()) {
    next_ = Spent() ? 0 : kIdle;
  }

  Result<std::unique_ptr<TokenConstraint>> Clone() const override {
    auto clone = std::make_unique<BudgetConstraint>(limit_, pristine_);
    if (pristine_ != nullptr) {
      INFERD_ASSIGN(clone->own_, pristine_->Clone());
    }
    return std::unique_ptr<TokenConstraint>(std::move(clone));
  }

  Result<> FillMask(std::span<std::uint32_t> words) override {
    if (next_ != kIdle) {
      const auto token = static_cast<std::size_t>(limit_->closing[next_]);
      std::fill(words.begin(), words.end(), 0);
      if (token / 32 >= words.size()) {
        return Internal("the model cannot write token {}, which ends its reasoning", token);
      }
      words[token / 32] |= 1U << (token % 32);
      return {};
    }
    std::fill(words.begin(), words.end(), ~0U);
    if (own_ != nullptr) {
      INFERD_TRY(own_->FillMask(words));
    }
    for (const std::int32_t token : limit_->ignored_ends) {
      Forbid(token, words);
    }
    if (just_closed_) {
      Forbid(limit_->reopening, words);
    }
    return {};
  }

  Result<> Accept(std::int32_t token) override {
    if (own_ != nullptr) {
      INFERD_TRY(own_->Accept(token));
    }
    reasoned_ += parser_->in_reasoning() ? 1 : 0;
    parts_.clear();
    parser_->Push(detokenizer_.Push(token), &parts_);
    just_closed_ = false;
    if (next_ == kIdle) {
      next_ = Spent() && !gave_up_ ? 0 : kIdle;
    } else if (++next_ == limit_->closing.size()) {
      next_ = kIdle;
      just_closed_ = true;
      gave_up_ = parser_->in_reasoning();  // it cannot be closed: do not write closings for ever
    }
    return {};
  }

 private:
  static constexpr std::size_t kIdle = static_cast<std::size_t>(-1);

  bool Spent() const { return parser_->in_reasoning() && reasoned_ >= limit_->budget; }

  const std::shared_ptr<const ReasoningLimit> limit_;
  const std::shared_ptr<const TokenConstraint> pristine_;
  std::unique_ptr<TokenConstraint> own_;  // only in clones
  text::IncrementalDetokenizer detokenizer_;
  std::unique_ptr<text::OutputParser> parser_;
  std::vector<text::OutputDelta> parts_;  // scratch
  std::int64_t reasoned_ = 0;
  std::size_t next_ = kIdle;  // of the closing's tokens, while it is being written
  bool just_closed_ = false;
  bool gave_up_ = false;
};

struct Effort {
  std::string_view name;
  std::int64_t budget;
};
constexpr Effort kEfforts[] = {{"none", 0}, {"minimal", 512}, {"low", 2048}, {"medium", 8192}};

/// The text that ends a model's reasoning. With tools a channel is left to choose.
std::string Closing(const text::Dialect& dialect, bool tools) {
  if (!dialect.channels()) {
    return dialect.reasoning->end;
  }
  std::string text(text::harmony::kEnd);
  text += text::harmony::kStart;
  text += "assistant";
  text += text::harmony::kChannel;
  if (!tools) {
    text += "final";
    text += text::harmony::kMessage;
  }
  return text;
}

}  // namespace

std::optional<std::int64_t> BudgetOfEffort(std::string_view effort) {
  for (const Effort& known : kEfforts) {
    if (known.name == effort) {
      return known.budget;
    }
  }
  return std::nullopt;
}

Result<> LimitReasoning(const ServerContext& context,
                        const ChatRequest& chat,
                        const GenerationSpec& spec,
                        leader::GenerateRequest* request) {
  const ServedModel& model = context.model;
  std::optional<std::int64_t> budget = chat.thinking_budget;
  if (!budget && chat.reasoning_effort && !model.template_knows_effort) {
    budget = BudgetOfEffort(*chat.reasoning_effort);
  }
  if (!budget || spec.parsers == nullptr || model.dialect.reasoning == nullptr) {
    return {};
  }
  const auto& ends = context.service.model().eos_ids;
  const auto is_end = [&](std::int32_t token) {
    return std::ranges::find(ends, token) != ends.end();
  };
  const std::vector<std::int32_t>& allowed = request->sampling.allowed_tokens;
  // A grammar says itself when it may end. And where only ends are allowed, they must do.
  const bool ends_ignored = request->ignore_eos && request->constraint == nullptr &&
                            (allowed.empty() || !std::ranges::all_of(allowed, is_end));
  ConstrainToAllowed(ends, request);  // below this constraint: the closing may always come
  auto limit = std::make_shared<ReasoningLimit>();
  limit->budget = *budget;
  INFERD_ASSIGN(limit->closing,
                model.tokenizer->Encode(Closing(model.dialect, chat.tools.offered()),
                                        {.add_special = false, .parse_special = true}));
  if (limit->closing.empty()) {
    return {};
  }
  if (model.dialect.channels()) {
    limit->reopening = model.tokenizer->TokenToId(text::harmony::kReasoning).value_or(-1);
  }
  if (ends_ignored) {
    limit->ignored_ends.assign(ends.begin(), ends.end());
  }
  limit->tokenizer = model.tokenizer;
  limit->parsers = spec.parsers;
  limit->shown = spec.marker_tokens;
  limit->skip_special = spec.skip_special;
  request->constraint = std::make_shared<BudgetConstraint>(std::move(limit), request->constraint);
  return {};
}

}  // namespace inferd::api
