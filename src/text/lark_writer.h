// SPDX-License-Identifier: Apache-2.0
// Writes texts as Lark for text/grammar.h: control tokens, which no bytes can spell, by number.
#pragma once

#include "inferd/result.h"
#include "text/grammar.h"

#include <string>
#include <string_view>
#include <vector>

namespace inferd::text {

class LarkWriter {
 public:
  /// `vocabulary` outlives the writer.
  explicit LarkWriter(const GrammarVocabulary& vocabulary);

  /// Terminals, each with a space behind it; empty for an empty text.
  Result<std::string> Text(std::string_view text) const;
  /// Up to the first control token in it.
  std::string_view PlainPart(std::string_view text) const;

 private:
  const GrammarVocabulary& vocabulary_;
  std::vector<std::string_view> specials_;  // longest first
};

/// As a terminal.
std::string LarkString(std::string_view text);

}  // namespace inferd::text
