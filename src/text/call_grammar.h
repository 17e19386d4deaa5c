// SPDX-License-Identifier: Apache-2.0
// The grammar of a dialect's tool calls, in Lark for text/grammar.h: what makes a model call, and
// call right.
#pragma once

#include "inferd/result.h"
#include "text/dialect.h"
#include "text/grammar.h"

#include <span>
#include <string>

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

/// The schemas hold exactly where arguments are JSON. In kTags and kPython only the first call's
/// beginning and name are forced, and what follows is free.
bool EnforcesSchemas(const CallDialect& dialect);

/// What has to come first: the marker behind which a grammar with `after_marker` begins.
std::string_view FirstMarker(const CallDialect& dialect);

/// An output that is calls and nothing else. `tools` is not empty.
Result<std::string> CallGrammar(const GrammarVocabulary& vocabulary,
                                const CallDialect& dialect,
                                std::span<const ToolGrammar> tools,
                                CallGrammarOptions options);

}  // namespace inferd::text
