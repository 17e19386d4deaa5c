// SPDX-License-Identifier: Apache-2.0
// The grammar of a dialect's tool calls, in Lark for text/grammar.h: what makes a model call, and
// call right.
#pragma once

#include "inferd/result.h"
#include "text/dialect.h"
#include "text/grammar.h"

#include <span>
#include <string>
#include <string_view>

namespace inferd::text {

struct ToolGrammar {
  std::string name;
  /// For %json, as PrepareJsonSchema() makes it; empty: any object.
  std::string schema;
};

struct CallGrammarOptions {
  bool one_call = false;
  /// The output goes on behind the first start marker (of the section, where there are sections).
  bool after_marker = false;
};

/// A tool's schema (as in ToolGrammar) holds to the letter in what CallGrammar() allows. It always
/// does where arguments are JSON. InvalidArgument names what does not where parameters are written
/// one by one (kTags, kPython).
Result<> CheckSchemaHolds(const CallDialect& dialect, std::string_view schema);

/// What has to come first: the marker behind which a grammar with `after_marker` begins.
std::string_view FirstMarker(const CallDialect& dialect);

/// An output that is calls and nothing else. `tools` is not empty.
Result<std::string> CallGrammar(const GrammarVocabulary& vocabulary,
                                const CallDialect& dialect,
                                std::span<const ToolGrammar> tools,
                                CallGrammarOptions options);

}  // namespace inferd::text
