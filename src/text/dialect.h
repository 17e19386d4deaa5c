// SPDX-License-Identifier: Apache-2.0
// How a model writes tool calls and reasoning, as data: the entries of configs/dialects.yaml. The
// same description parses the stream (text/dialect_parser.h) and constrains decoding. docs/tools.md
// explains every key.
#pragma once

#include "inferd/result.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace inferd::text {

/// One of the lists, all of whose strings are in a chat template, selects the dialect.
using TemplateMarks = std::vector<std::vector<std::string>>;

enum class CallFormat : std::uint8_t {
  kJson,      // {"name": .., "arguments": {..}}, or a list of these
  kNamed,     // name, mark, {..}
  kTags,      // name and parameters in tags
  kPython,    // [name(a=1), ..]
  kChannels,  // messages with a channel and a recipient (harmony)
};

/// Markers are as models write them, white space at their ends included; the parser takes any white
/// space there.
struct CallDialect {
  std::string name;
  std::vector<std::string> aliases;
  TemplateMarks marks;
  CallFormat format = CallFormat::kJson;
  std::string section_start;       // before the first of several calls; empty: no sections
  std::string section_end;         // after the last
  bool one_per_section = false;    // every call has a section of its own
  std::vector<std::string> start;  // of a call; the first is what grammars write
  std::string end;                 // of a call; empty: it ends where its text is complete
  std::string separator;           // between calls, or between sections
  bool bare = false;               // a reply may also begin with a call that lacks `start`
  bool nine_character_ids = false;
  // kJson
  bool list = false;  // all calls are one list after one `start`
  std::vector<std::string> name_keys = {"name"};
  std::vector<std::string> argument_keys = {"arguments", "parameters"};
  // kNamed and kTags: prefix NAME [index_mark N] [id_mark ID] name_end ...
  std::string name_prefix;
  std::string index_mark;  // the call's id is the text from prefix to number
  std::string id_mark;
  std::string name_end;
  std::string arguments_end;  // kNamed: after the JSON
  // kTags: key_start KEY key_end value_start VALUE value_end
  std::string key_start;
  std::string key_end;
  std::string value_start;
  std::string value_end;
};

struct ReasoningDialect {
  std::string name;
  std::vector<std::string> aliases;
  TemplateMarks marks;
  bool channels = false;  // messages of a channel for it; start and end are empty
  std::string start;
  std::string end;
};

/// What one model speaks; null parts: it has none, or it was switched off.
struct Dialect {
  std::shared_ptr<const CallDialect> calls;
  std::shared_ptr<const ReasoningDialect> reasoning;

  bool channels() const {
    return (calls && calls->format == CallFormat::kChannels) || (reasoning && reasoning->channels);
  }
  /// All markers, without white space at their ends: what must reach the parser even where special
  /// tokens are hidden.
  std::vector<std::string> Markers() const;
};

/// Immutable.
class DialectTable {
 public:
  /// The built-in entries; `users` is YAML of more, which come first. InvalidArgument names the
  /// entry and key that is wrong.
  static Result<DialectTable> Load(std::string_view users = {});

  /// `calls` and `reasoning`: a name or alias, "none", or "auto" (also empty): by the template.
  /// InvalidArgument lists the names.
  Result<Dialect> Select(std::string_view chat_template,
                         std::string_view calls,
                         std::string_view reasoning) const;

  const std::vector<std::shared_ptr<const CallDialect>>& calls() const { return calls_; }
  const std::vector<std::shared_ptr<const ReasoningDialect>>& reasoning() const {
    return reasoning_;
  }

 private:
  std::vector<std::shared_ptr<const CallDialect>> calls_;
  std::vector<std::shared_ptr<const ReasoningDialect>> reasoning_;
};

/// Which control tokens of a vocabulary are part of a marker: entry i is of token i. Null: none is.
std::shared_ptr<const std::vector<bool>> MarkerTokens(const Tokenizer& tokenizer,
                                                      const Dialect& dialect);

/// The text of configs/dialects.yaml.
std::string_view BuiltInDialects();

// The markers of kChannels, which are those of one family of models.
namespace harmony {
inline constexpr std::string_view kStart = "<|start|>";
inline constexpr std::string_view kChannel = "<|channel|>";
inline constexpr std::string_view kConstrain = "<|constrain|>";
inline constexpr std::string_view kMessage = "<|message|>";
inline constexpr std::string_view kEnd = "<|end|>";
inline constexpr std::string_view kCall = "<|call|>";
inline constexpr std::string_view kReturn = "<|return|>";
inline constexpr std::string_view kMarkers[] = {
    kStart, kChannel, kConstrain, kMessage, kEnd, kCall, kReturn};
inline constexpr std::string_view kRecipient = "to=";
inline constexpr std::string_view kFunctions = "functions.";
inline constexpr std::string_view kReasoning = "analysis";
}  // namespace harmony

}  // namespace inferd::text
