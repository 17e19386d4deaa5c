// SPDX-License-Identifier: Apache-2.0
#include "text/dialect.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace inferd::text {
namespace {

DialectTable Table(std::string_view users = {}) {
  auto table = DialectTable::Load(users);
  EXPECT_TRUE(table.ok()) << table.error().message();
  return *std::move(table);
}

TEST(DialectTable, IsTheFileOfConfigs) {
  std::ifstream file(std::string(INFERD_CONFIGS) + "/dialects.yaml");
  EXPECT_EQ(BuiltInDialects(), std::string(std::istreambuf_iterator<char>(file), {}));
}

TEST(DialectTable, ChoosesByTheTemplate) {
  const struct {
    std::string text;
    std::string calls;
    std::string reasoning;
  } kCases[] = {
      {"return JSON within <tool_call></tool_call> tags", "hermes", ""},
      {"<tool_call> <think> </think>", "hermes", "think"},
      {"<tool_call>\n<function=x>\n<parameter=y>", "qwen3_coder", ""},
      {"<tool_call>{name}\n<arg_key>k</arg_key> </think>", "glm45", "think"},
      {"'<｜tool▁calls▁begin｜>' '\\n' + '```json'", "deepseek_v3", ""},
      {"'<｜tool▁calls▁begin｜>' + '<｜tool▁sep｜>'", "deepseek_v31", ""},
      {"[TOOL_CALLS] [", "mistral", ""},
      {"[TOOL_CALLS]name[ARGS] [THINK]", "mistral_args", "mistral"},
      {"<|channel|>analysis<|message|> to=functions.x", "openai", "openai_gptoss"},
      {"<|tool|>{}<|/tool|> <|tool_call|>", "phi4_mini_json", ""},
      {"write <|tool_call|> followed by", "granite", ""},
      {R"({"name": function name, "parameters": dictionary of argument name and its value})",
       "llama3_json",
       ""},
      {"[func_name1(params_name1=params_value1, ..)]", "pythonic", ""},
      {"{% for m in messages %}{{ m.content }}{% endfor %}", "", ""},
  };
  const DialectTable table = Table();
  for (const auto& [text, calls, reasoning] : kCases) {
    const auto dialect = table.Select(text, "auto", "");
    ASSERT_TRUE(dialect.ok());
    EXPECT_EQ(dialect->calls == nullptr ? "" : dialect->calls->name, calls) << text;
    EXPECT_EQ(dialect->reasoning == nullptr ? "" : dialect->reasoning->name, reasoning) << text;
  }
}

TEST(DialectTable, TakesNamesAliasesAndNone) {
  const DialectTable table = Table();
  const auto dialect = table.Select("<tool_call>", "llama4_json", "qwen3");
  ASSERT_TRUE(dialect.ok());
  EXPECT_EQ(dialect->calls->name, "llama3_json");
  EXPECT_EQ(dialect->reasoning->name, "think");
  const auto none = table.Select("<tool_call><think>", "none", "none");
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->calls, nullptr);
  EXPECT_EQ(none->reasoning, nullptr);
  const auto unknown = table.Select("", "hermess", "");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message().find("hermes"), std::string::npos);
}

TEST(DialectTable, PutsUsersEntriesFirst) {
  const DialectTable table = Table(
      "calls:\n  - {name: mine, template: [['<tool_call>']], format: json, start: ['@@'], end: "
      "'@'}\n"
      "reasoning:\n  - {name: mine, start: '((', end: '))'}\n");
  const auto dialect = table.Select("<tool_call>", "", "mine");
  ASSERT_TRUE(dialect.ok());
  EXPECT_EQ(dialect->calls->name, "mine");
  EXPECT_EQ(dialect->Markers(), (std::vector<std::string>{"((", "))", "@@", "@"}));
}

TEST(DialectTable, NamesWhatIsWrong) {
  const struct {
    std::string yaml;
    std::string part;
  } kCases[] = {
      {"calls: [{name: a, format: json}]", "start"},
      {"calls: [{name: a, format: xml}]", "xml"},
      {"calls: [{name: a, format: json, start: ['<'], colour: red}]", "colour"},
      {"calls: [{name: a, format: named, start: ['<']}]", "name_end"},
      {"calls: [{name: a, format: tags, start: ['<']}]", "key_start"},
      {"calls: [{name: a, format: json, start: ['<'], section_start: '['}]", "section_end"},
      {"calls: [{format: json}]", "calls[0]"},
      {"calls: 5", "calls"},
      {"tools: []", "tools"},
      {"reasoning: [{name: a, start: x}]", "end"},
      {"calls: [", "YAML"},
      {"calls: [{name: a, format: json, start: {a: b}}]", "YAML"},
  };
  for (const auto& [yaml, part] : kCases) {
    const auto table = DialectTable::Load(yaml);
    ASSERT_FALSE(table.ok()) << yaml;
    EXPECT_NE(table.error().message().find(part), std::string::npos) << table.error().message();
  }
}

}  // namespace
}  // namespace inferd::text
