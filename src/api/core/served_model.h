// SPDX-License-Identifier: Apache-2.0
// The model as the front end knows it: its names, its text side and its makers' sampling defaults.
// Immutable but for the names.
#pragma once

#include "api/core/model_names.h"
#include "text/chat_template.h"
#include "text/dialect.h"
#include "text/grammar_cache.h"
#include "text/tokenizer.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::api {

/// A request beats these, these beat the built-in values (temperature 1, nothing cut).
struct SamplingDefaults {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<std::int32_t> top_k;
  std::optional<double> repetition_penalty;
};

struct ServedModel {
  std::shared_ptr<ModelNames> names;  // as clients may call it; never null
  std::string version;                // tells one set of weights from another; empty: not known
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat_template;  // null: the model has none
  text::SpecialTokens specials;                             // for templates that requests bring
  bool trust_request_chat_template = false;                 // requests may bring one
  bool force_include_usage = false;                         // in streams that did not ask
  text::Dialect dialect;                                    // of tool calls and reasoning
  std::shared_ptr<const std::vector<bool>> marker_tokens;   // control tokens that its parser needs
  bool arguments_as_text = false;      // the template wants past calls' arguments as JSON text
  bool template_knows_effort = false;  // it shows reasoning_effort
  std::shared_ptr<text::GrammarCache> grammars;  // never null
  SamplingDefaults defaults;
  std::int64_t created_s = 0;
  std::size_t longest_token_bytes =
      0;                        // bounds from below how many tokens a text has; 0: not known
  std::int64_t vocab_size = 0;  // of the model's head; may be wider than the tokenizer's

  /// What answers say.
  std::string name() const { return names->First(); }
  /// A name, or name@version.
  bool Answers(std::string_view asked) const {
    return names->Has(asked) || names->Has(WithoutVersion(asked));
  }
  /// The same, and names that are gone: for work that was left here while they were there.
  bool HasAnswered(std::string_view asked) const {
    return names->HasHad(asked) || names->HasHad(WithoutVersion(asked));
  }
  /// "name" of "name@version" when that is this model's version; else `asked`.
  std::string_view WithoutVersion(std::string_view asked) const {
    const std::size_t at = asked.rfind('@');
    return at != std::string_view::npos && !version.empty() && asked.substr(at + 1) == version
               ? asked.substr(0, at)
               : asked;
  }
};

}  // namespace inferd::api
