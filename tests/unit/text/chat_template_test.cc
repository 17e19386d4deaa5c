// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include "unit/text/cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace inferd::text {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::shared_ptr<const ChatTemplate> Compile(std::string_view source) {
  auto compiled =
      ChatTemplate::Compile(source, {.bos = "<s>", .eos = "</s>", .pad = {}, .unk = {}});
  EXPECT_TRUE(compiled.ok()) << compiled.error().message();
  return *compiled;
}

Error RenderError(std::string_view source,
                  std::string_view variables = "{}",
                  std::string_view kwargs = {}) {
  const auto text = Compile(source)->Render(variables, kwargs);
  EXPECT_FALSE(text.ok()) << text.value();
  return text.ok() ? Error(Code::kUnknown, "") : text.error();
}

Error CompileError(std::string_view source) {
  const auto compiled = ChatTemplate::Compile(source, {});
  EXPECT_FALSE(compiled.ok());
  return compiled.ok() ? Error(Code::kUnknown, "") : compiled.error();
}

TEST(ChatTemplateTest, RendersAsTheReferenceDoes) {
  const nlohmann::json data = ReadJson(DataPath("text/template_cases.json"));
  ASSERT_GE(data["cases"].size(), 30u);
  for (const auto& c : data["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>() + ": " + c["source"].get<std::string>());
    const auto text = Compile(c["source"].get<std::string>())
                          ->Render(c["variables_json"].get<std::string>(),
                                   {},
                                   {.now_s = data["now_s"].get<std::int64_t>()});
    if (c.contains("text")) {
      ASSERT_TRUE(text.ok()) << text.error().message();
      EXPECT_EQ(*text, c["text"].get<std::string>());
    } else {
      ASSERT_FALSE(text.ok()) << *text;
      EXPECT_EQ(text.error().code(), Code::kInvalidArgument);
    }
  }
}

TEST(ChatTemplateTest, RaisedTextComesBackUnchanged) {
  const Error error = RenderError(
      "{% macro m() %}{{ raise_exception('Only \"user\" <roles> \xC3\xA9') }}{% endmacro %}{{ m() "
      "}}");
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_EQ(error.message(), "Only \"user\" <roles> \xC3\xA9");
}

TEST(ChatTemplateTest, KwargsBecomeVariables) {
  const auto compiled = Compile("{{ enable_thinking }}{{ nested.a[1] }}");
  EXPECT_EQ(*compiled->Render("{}", R"({"enable_thinking": false, "nested": {"a": [1, "z"]}})"),
            "Falsez");
  EXPECT_EQ(compiled->Render("{}", "[1]").error().code(), Code::kInvalidArgument);
}

TEST(ChatTemplateTest, ReservedKwargsAreRefused) {
  for (const char* name : {"messages",
                           "tools",
                           "add_generation_prompt",
                           "bos_token",
                           "raise_exception",
                           "strftime_now",
                           "namespace",
                           "range",
                           "chat_template"}) {
    const Error error = RenderError("x", "{}", std::string("{\"") + name + "\": 1}");
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr(std::string("'") + name + "'"));
  }
}

TEST(ChatTemplateTest, ServerVariablesBeatKwargs) {
  EXPECT_EQ(*Compile("{{ x }}")->Render(R"({"x": "server"})", R"({"x": "client"})"), "server");
}

TEST(ChatTemplateTest, BadJsonIsTheClientsFault) {
  for (const char* json : {"", "{", "[]", "nul", "{\"a\": NaN}", "\xFF"}) {
    const auto text = Compile("x")->Render(json);
    ASSERT_FALSE(text.ok()) << json;
    EXPECT_EQ(text.error().code(), Code::kInvalidArgument);
  }
  const std::string deep = "{\"a\": " + std::string(5000, '[') + std::string(5000, ']') + "}";
  EXPECT_EQ(Compile("x")->Render(deep).error().code(), Code::kInvalidArgument);
}

TEST(ChatTemplateTest, DunderNamesAreRefused) {
  for (const char* source : {"{{ ''.__class__ }}",
                             "{{ messages['__init__'] }}",
                             "{% set x = messages|attr('__mro__') %}",
                             "{{ __import__('os') }}",
                             "{{ cycler.__init__.__globals__.os.popen('id').read() }}"}) {
    const Error error = CompileError(source);
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("__")) << source;
  }
  // Put together at run time they name nothing.
  EXPECT_EQ(*Compile("[{{ ''['__cla' ~ 'ss__'] }}]")->Render("{}"), "[]");
  // Text, comments and names that only look alike are fine.
  EXPECT_EQ(*Compile("__init__ {# __class__ #}{% raw %}{{ x.__y__ }}{% endraw %}{{ 'a__b' }}")
                 ->Render("{}"),
            "__init__ {{ x.__y__ }}a__b");
}

// What holds itself cannot be written out: it would end the process, not the request.
TEST(ChatTemplateTest, ANamespaceIsNotStoredInANamespace) {
  const std::string made = "{% set ns = namespace(x=1) %}";
  for (const char* const rest :
       {"{% set ns.x = ns %}{{ ns }}",
        "{% set ns.x = [1, ns] %}{{ ns.x|tojson }}",
        "{% set ns.x = {'a': ns} %}{{ ns }}",
        "{%- set a = ns -%}{% set ns.x = a %}",
        "{% set ns.x = b %}{% set b = [a] %}{% set a = ns %}",
        "{% for a in [ns] %}{% set ns.x = a %}{% endfor %}",
        "{% with a = ns %}{% set ns.x = a %}{% endwith %}",
        "{% macro f(a) %}{% set ns.x = a %}{% endmacro %}{{ f(ns) }}",
        "{% macro f(b, a=1) %}{% set b.x = a %}{% endmacro %}{{ f(ns, a=ns) }}",
        "{% macro f(a) %}{% endmacro %}{% macro f(b) %}{% set ns.x = b %}{% endmacro %}{{ f(ns) }}",
        "{% macro f(a) %}{% set ns.x = a %}{% endmacro %}{% set g = f %}{{ g(ns) }}",
        "{% set l = [ns] %}{% set ns.x = l[0] %}",
        "{% set o = namespace(y=ns) %}{% set ns.x = o.y %}",
        "{% set ns.x = ns | list %}",
        "{% set ns.x = namespace(y=2) %}"}) {
    const auto compiled = ChatTemplate::Compile(made + rest, {});
    ASSERT_FALSE(compiled.ok()) << rest;
    EXPECT_NE(compiled.error().message().find("namespace in a namespace"), std::string::npos)
        << rest;
  }
  for (const char* const rest :
       {"{% set ns.x = ns.x + 1 %}{{ ns.x }}",
        "{% set ns.x = ns['x'] + 1 %}{{ ns['x'] }}",
        "{% if ns.x == 1 %}{% set ns.x = 'ns' and 2 %}{% endif %}{{ ns.x }}",
        "{% for m in [1] %}{% set ns.x = [2][m - 1] %}{% endfor %}{{ ns.x }}",
        "{% macro f(a) %}{{ a + 1 }}{% endmacro %}{{ f(ns.x) }}"}) {
    const auto compiled = ChatTemplate::Compile(made + rest, {});
    ASSERT_TRUE(compiled.ok()) << rest << ": " << compiled.error().message();
    EXPECT_EQ(*(*compiled)->Render("{}", ""), "2") << rest;
  }
}

TEST(ChatTemplateTest, NothingCanBeIncluded) {
  for (const char* source : {"{% include 'x' %}",
                             "{% extends 'x' %}",
                             "{% import '/etc/passwd' as p %}",
                             "{{ debug() }}",
                             "{{ lipsum() }}",
                             "{{ self.x() }}"}) {
    const auto compiled = ChatTemplate::Compile(source, {});
    EXPECT_TRUE(!compiled.ok() || !(*compiled)->Render("{}").ok()) << source;
  }
}

TEST(ChatTemplateTest, SyntaxErrorsNameTheLine) {
  const Error error = CompileError("line\n{% if x %}\n{{ y ");
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("line 3"));
  EXPECT_EQ(CompileError(std::string((1 << 20) + 1, 'x')).code(), Code::kInvalidArgument);
  EXPECT_EQ(CompileError("\xFF").code(), Code::kInvalidArgument);
}

TEST(ChatTemplateTest, ErrorsDoNotQuoteThePrompt) {
  const Error error = RenderError("{{ messages[0].content.nope.deeper }}",
                                  R"({"messages": [{"content": "secret text"}]})");
  EXPECT_THAT(error.message(), Not(HasSubstr("secret")));
  EXPECT_THAT(error.message(), HasSubstr("line 1"));
}

TEST(ChatTemplateTest, StepsAndOutputAreBounded) {
  constexpr std::string_view kManySteps =
      "{% set ns = namespace(n=0) %}{% for a in range(10000) %}{% for b in range(10000) %}{% set "
      "ns.n = ns.n + 1 %}{% endfor %}{% endfor %}";
  constexpr std::string_view kDoubling =
      "{% set ns = namespace(s='x') %}{% for a in range(64) %}{% set ns.s = ns.s + ns.s %}{% "
      "endfor %}{{ ns.s }}";
  for (const std::string_view source :
       {kManySteps, kDoubling, std::string_view("{{ 'x' * 100000000000 }}")}) {
    EXPECT_EQ(RenderError(source).code(), Code::kResourceExhausted) << source;
  }
  const std::string big = R"({"x": ")" + std::string(1 << 20, 'x') + "\"}";
  EXPECT_TRUE(Compile("{{ x }}{{ x }}{{ x }}")->Render(big).ok());
  EXPECT_EQ(RenderError("{{ x }}{{ x }}{{ x }}{{ x }}!", big).code(), Code::kResourceExhausted);
  // Recursion ends in an error, not in a crash.
  EXPECT_EQ(RenderError("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}").code(),
            Code::kInvalidArgument);
}

TEST(ChatTemplateTest, Mentions) {
  const auto compiled = Compile("{% if tools %}{{ messages[0] }}{% endif %}");
  EXPECT_TRUE(compiled->Mentions("tools"));
  EXPECT_TRUE(compiled->Mentions("messages"));
  EXPECT_FALSE(compiled->Mentions("enable_thinking"));
}

TEST(ChatTemplateTest, SystemClockWithoutAFixedOne) {
  EXPECT_THAT(*Compile("{{ strftime_now('%Y') }}")->Render("{}"), StartsWith("20"));
}

}  // namespace
}  // namespace inferd::text
