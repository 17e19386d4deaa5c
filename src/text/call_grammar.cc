// SPDX-License-Identifier: Apache-2.0
#include "text/call_grammar.h"

#include "base/error.h"
#include "text/call_parameters.h"
#include "text/lark_writer.h"
#include "text/white_space.h"

#include <fmt/core.h>

#include <string>

namespace inferd::text {
namespace {

bool WritesParameters(const CallDialect& dialect) {
  return dialect.format == CallFormat::kTags || dialect.format == CallFormat::kPython;
}

/// `TOOLS` and `TOOL<i>` of the grammar: what stands between a call's start and its end.
Result<std::string> ToolRules(const LarkWriter& writer,
                              const CallDialect& dialect,
                              std::span<const ToolGrammar> tools) {
  std::string any = "tool: ";
  std::string rules;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const ToolGrammar& tool = tools[i];
    const std::string arguments =
        "%json " + (tool.schema.empty() ? R"({"type": "object"})" : tool.schema) + "\n";
    std::string before;
    std::string after;
    std::string number;
    switch (dialect.format) {
      case CallFormat::kJson:
        before = fmt::format(R"({{"{}": "{}", "{}": )",
                             dialect.name_keys.front(),
                             tool.name,
                             dialect.argument_keys.front());
        after = "}";
        break;
      case CallFormat::kNamed:
        before = dialect.name_prefix + tool.name + dialect.index_mark;
        number = dialect.index_mark.empty() ? "" : "/[0-9]{1,4}/ ";
        after = dialect.arguments_end;
        break;
      case CallFormat::kChannels:
        before = fmt::format("{}commentary {}{}{} {}json{}",
                             harmony::kChannel,
                             harmony::kRecipient,
                             harmony::kFunctions,
                             tool.name,
                             harmony::kConstrain,
                             harmony::kMessage);
        break;
      case CallFormat::kTags:
        before = dialect.name_prefix + tool.name + dialect.name_end;
        break;
      case CallFormat::kPython:
        before = tool.name + "(";
        break;
    }
    INFERD_ASSIGN(before, writer.Text(before));
    INFERD_ASSIGN(after, writer.Text(after));
    any += fmt::format("{}tool{}", i == 0 ? "" : " | ", i);
    if (WritesParameters(dialect)) {
      const std::string name = fmt::format("args{}", i);
      INFERD_ASSIGN(const std::string parameters,
                    ParameterRules(writer, dialect, name, tool.schema));
      const char* const close = dialect.format == CallFormat::kPython ? "\")\"" : "";
      rules += fmt::format("tool{}: {}{} {}\n{}", i, before, name, close, parameters);
      continue;
    }
    if (dialect.format == CallFormat::kNamed) {
      INFERD_ASSIGN(const std::string mark, writer.Text(dialect.name_end));
      number += mark;
    }
    rules += fmt::format(
        "tool{0}: {1}{2}args{0} {3}\nargs{0}: {4}", i, before, number, after, arguments);
  }
  return any + "\n" + rules;
}

/// `first (separator next)*`, or only the first.
std::string Repeated(const std::string& first,
                     const std::string& separator,
                     const std::string& next,
                     bool once) {
  return once ? first : fmt::format("{} ({} {})*", first, separator, next);
}

}  // namespace

Result<> CheckSchemaHolds(const CallDialect& dialect, std::string_view schema) {
  return WritesParameters(dialect) ? CheckParametersHold(dialect, schema) : Result<>();
}

std::string_view FirstMarker(const CallDialect& dialect) {
  return Trim(dialect.section_start.empty() ? dialect.start.front() : dialect.section_start);
}

Result<std::string> CallGrammar(const GrammarVocabulary& vocabulary,
                                const CallDialect& dialect,
                                std::span<const ToolGrammar> tools,
                                CallGrammarOptions options) {
  const LarkWriter writer(vocabulary);
  INFERD_ASSIGN(const std::string rules, ToolRules(writer, dialect, tools));
  const bool once = options.one_call;
  const bool marked = !dialect.bare;
  const std::string start_text = marked && !dialect.start.empty() ? dialect.start.front() : "";
  INFERD_ASSIGN(const std::string start, writer.Text(start_text));
  INFERD_ASSIGN(const std::string end, writer.Text(marked ? dialect.end : ""));
  INFERD_ASSIGN(const std::string separator, writer.Text(dialect.separator));
  INFERD_ASSIGN(const std::string section_start, writer.Text(dialect.section_start));
  INFERD_ASSIGN(const std::string section_end, writer.Text(dialect.section_end));
  // The first marker has been written already, without the white space around it.
  const auto rest_of = [&](const std::string& marker_text, const std::string& lark) {
    return options.after_marker ? (marker_text.empty() ? std::string() : std::string("SPACE "))
                                : lark;
  };
  std::string body;
  if (dialect.format == CallFormat::kChannels) {
    INFERD_ASSIGN(const std::string begin,
                  writer.Text(fmt::format("{}analysis{}", harmony::kChannel, harmony::kMessage)));
    INFERD_ASSIGN(const std::string next,
                  writer.Text(fmt::format("{}{}assistant", harmony::kEnd, harmony::kStart)));
    body = fmt::format("({}{} {})? tool", begin, kFree, next);
  } else if (dialect.list || dialect.format == CallFormat::kPython) {
    body = rest_of(start_text, start) + "\"[\" " + Repeated("tool", "\", \"", "tool", once) +
           " \"]\" " + end;
  } else if (dialect.one_per_section) {
    const std::string call = start + "tool " + end + ' ' + section_end;
    body = Repeated(rest_of(dialect.section_start, section_start) + call,
                    separator,
                    section_start + call,
                    once);
  } else if (!dialect.section_start.empty()) {
    body = rest_of(dialect.section_start, section_start) +
           Repeated(start + "tool " + end, separator, start + "tool " + end, once) + ' ' +
           section_end;
  } else {
    body = Repeated(
        rest_of(start_text, start) + "tool " + end, separator, start + "tool " + end, once);
  }
  return fmt::format("start: {}{}\nSPACE: /[ \\t\\r\\n]{{0,4}}/\n{}",
                     options.after_marker ? "" : "SPACE ",
                     body,
                     rules);
}

}  // namespace inferd::text
