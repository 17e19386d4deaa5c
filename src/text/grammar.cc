// SPDX-License-Identifier: Apache-2.0
#include "text/grammar.h"

#include "base/error.h"
#include "text/rust_call.h"

#include <fmt/core.h>

#include <utility>
#include <vector>

namespace inferd::text {

// ---- GrammarVocabulary

Result<std::shared_ptr<const GrammarVocabulary>> GrammarVocabulary::Make(
    std::shared_ptr<const Tokenizer> tokenizer, std::span<const std::int32_t> end_tokens) {
  std::shared_ptr<GrammarVocabulary> vocabulary(new GrammarVocabulary(std::move(tokenizer)));
  std::vector<std::uint32_t> ends;
  for (const std::int32_t id : end_tokens) {
    if (id >= 0) {
      ends.push_back(static_cast<std::uint32_t>(id));
    }
  }
  RustBuffer error;
  INFERD_TRY(ToResult(inferd_grammar_env_new(vocabulary->tokenizer_->handle(),
                                             ends.data(),
                                             ends.size(),
                                             &vocabulary->handle_,
                                             error.out()),
                      error));
  return std::shared_ptr<const GrammarVocabulary>(std::move(vocabulary));
}

GrammarVocabulary::~GrammarVocabulary() { inferd_grammar_env_free(handle_); }

Result<std::string> GrammarVocabulary::LarkToken(std::string_view spelling) const {
  const std::optional<std::int32_t> id = tokenizer_->TokenToId(spelling);
  if (!id.has_value()) {
    return NotFound("'{}' is not a token of this model", spelling);
  }
  return fmt::format("<[{}]>", *id);
}

// ---- GrammarMatcher

GrammarMatcher::GrammarMatcher(GrammarMatcher&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)) {}

GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

GrammarMatcher::~GrammarMatcher() { inferd_matcher_free(handle_); }

Result<GrammarMatcher> GrammarMatcher::Clone() const {
  inferd_matcher* copy = nullptr;
  RustBuffer error;
  INFERD_TRY(ToResult(inferd_matcher_clone(handle_, &copy, error.out()), error));
  return GrammarMatcher(copy);
}

Result<> GrammarMatcher::FillMask(std::span<std::uint32_t> words) {
  RustBuffer error;
  return ToResult(inferd_matcher_fill_mask(handle_, words.data(), words.size(), error.out()),
                  error);
}

Result<> GrammarMatcher::Accept(std::int32_t token) {
  if (token < 0) {
    return InvalidArgument("token {} is not a token", token);
  }
  RustBuffer error;
  return ToResult(inferd_matcher_accept(handle_, static_cast<std::uint32_t>(token), error.out()),
                  error);
}

Result<> GrammarMatcher::AcceptText(std::string_view text) {
  RustBuffer error;
  return ToResult(inferd_matcher_accept_text(handle_, ToBytes(text), error.out()), error);
}

Result<bool> GrammarMatcher::IsAccepting() {
  std::int32_t accepting = 0;
  RustBuffer error;
  INFERD_TRY(ToResult(inferd_matcher_is_accepting(handle_, &accepting, error.out()), error));
  return accepting != 0;
}

bool GrammarMatcher::is_stopped() const { return inferd_matcher_is_stopped(handle_) != 0; }

// ---- Grammar

Result<std::shared_ptr<const Grammar>> Grammar::Compile(
    std::shared_ptr<const GrammarVocabulary> vocabulary,
    GrammarKind kind,
    std::string_view source,
    const GrammarLimits& limits) {
  const inferd_grammar_limits raw = {
      .source_bytes = limits.source_bytes,
      .initial_fuel = limits.initial_fuel,
      .step_fuel = limits.step_fuel,
      .step_items = limits.step_items,
      .lexer_states = limits.lexer_states,
      .grammar_size = limits.grammar_size,
  };
  std::shared_ptr<Grammar> grammar(new Grammar(std::move(vocabulary)));
  RustBuffer error;
  INFERD_TRY(ToResult(inferd_grammar_compile(grammar->vocabulary_->handle_,
                                             static_cast<std::int32_t>(kind),
                                             ToBytes(source),
                                             &raw,
                                             &grammar->handle_,
                                             error.out()),
                      error));
  return std::shared_ptr<const Grammar>(std::move(grammar));
}

Grammar::~Grammar() { inferd_grammar_free(handle_); }

Result<GrammarMatcher> Grammar::NewMatcher() const {
  inferd_matcher* matcher = nullptr;
  RustBuffer error;
  INFERD_TRY(ToResult(inferd_matcher_new(handle_, &matcher, error.out()), error));
  return GrammarMatcher(matcher);
}

std::size_t Grammar::num_bytes() const { return inferd_grammar_num_bytes(handle_); }

Result<std::string> PrepareJsonSchema(std::string_view schema, std::string_view pointer) {
  RustBuffer out;
  RustBuffer error;
  INFERD_TRY(ToResult(
      inferd_schema_prepare(ToBytes(schema), ToBytes(pointer), out.out(), error.out()), error));
  return out.ToString();
}

}  // namespace inferd::text
