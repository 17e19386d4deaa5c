// SPDX-License-Identifier: Apache-2.0
// Grammars of calls, walked byte by byte; and what they allow is what the parser reads.
#include "text/call_grammar.h"

#include "text/dialect_parser.h"
#include "unit/text/dialect_samples.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

namespace inferd::text {
namespace {

constexpr std::int32_t kEnd = 1, kFirstByte = 2;
const std::string kSchema =
    R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},)"
    R"("required":["city"],"additionalProperties":false})";

std::shared_ptr<const GrammarVocabulary> ByteVocabulary() {
  static const auto kVocabulary = [] {
    Vocabulary raw;
    raw.model = "llama";
    const auto add = [&](const std::string& token, TokenType type) {
      raw.tokens.push_back(token);
      raw.types.push_back(static_cast<std::int32_t>(type));
      raw.scores.push_back(-static_cast<float>(raw.tokens.size()));
    };
    add("<unk>", TokenType::kUnknown);
    add("</s>", TokenType::kControl);
    for (int b = 0; b < 256; ++b) {
      add(fmt::format("<0x{:02X}>", b), TokenType::kByte);
    }
    add("[TOOL_CALLS]", TokenType::kControl);
    raw.add_space_prefix = false;
    raw.add_bos = false;
    auto tokenizer = Tokenizer::FromVocab(raw);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message();
    auto made = GrammarVocabulary::Make(*tokenizer, std::vector<std::int32_t>{kEnd});
    EXPECT_TRUE(made.ok()) << made.error().message();
    return *made;
  }();
  return kVocabulary;
}

bool Matches(const Grammar& grammar, std::string_view text) {
  auto matcher = grammar.NewMatcher();
  EXPECT_TRUE(matcher.ok());
  const std::string_view control = "[TOOL_CALLS]";
  while (!text.empty()) {
    const bool is_control = text.starts_with(control);
    const std::int32_t id =
        is_control ? kFirstByte + 256 : kFirstByte + static_cast<unsigned char>(text.front());
    if (!matcher->Accept(id).ok()) {
      return false;
    }
    text.remove_prefix(is_control ? control.size() : 1);
  }
  const auto accepting = matcher->IsAccepting();
  return accepting.ok() && *accepting;
}

std::shared_ptr<const Grammar> GrammarOf(const CallDialect& dialect, CallGrammarOptions options) {
  auto schema = PrepareJsonSchema(kSchema, "");
  EXPECT_TRUE(schema.ok());
  const std::vector<ToolGrammar> tools = {{"get_weather", *schema}, {"ping", ""}};
  auto source = CallGrammar(*ByteVocabulary(), dialect, tools, options);
  EXPECT_TRUE(source.ok());
  auto grammar = Grammar::Compile(ByteVocabulary(), GrammarKind::kGrammar, *source, {});
  EXPECT_TRUE(grammar.ok()) << dialect.name << "\n" << *source << grammar.error().message();
  return grammar.ok() ? *grammar : nullptr;
}

std::shared_ptr<const CallDialect> Named(const std::string& name) {
  static const auto kTable = DialectTable::Load();
  const auto dialect = kTable->Select("", name, "none");
  EXPECT_TRUE(dialect.ok());
  return dialect->calls;
}

TEST(CallGrammar, TakesOrRefusesSchemasThatContradictThemselves) {
  for (const char* name :
       {"glm45", "qwen3_coder", "minimax_m2", "seed_oss", "pythonic", "hermes"}) {
    for (const char* value : {R"({"type":"string","enum":["x"],"const":5})",
                              R"({"type":"string","enum":["x"],"const":"y"})",
                              R"({"enum":["x"],"const":null})",
                              R"({"type":"string","enum":[1],"const":"y"})",
                              R"({"enum":[],"const":"y"})"}) {
      auto schema = PrepareJsonSchema(
          R"({"type":"object","properties":{"a":)" + std::string(value) + R"(},"required":["a"]})",
          "");
      if (!schema.ok()) {
        continue;
      }
      const std::vector<ToolGrammar> tools = {{"f", *schema}};
      EXPECT_NO_THROW({
        const auto source = CallGrammar(*ByteVocabulary(), *Named(name), tools, {});
        EXPECT_TRUE(source.ok() || source.error().code() == Code::kInvalidArgument);
        const auto holds = CheckSchemaHolds(*Named(name), *schema);
        EXPECT_TRUE(holds.ok() || holds.error().code() == Code::kInvalidArgument);
      }) << name
         << " " << value;
    }
  }
}

TEST(CallGrammar, CompilesForEveryDialect) {
  const auto table = DialectTable::Load();
  ASSERT_TRUE(table.ok());
  for (const auto& dialect : table->calls()) {
    EXPECT_NE(GrammarOf(*dialect, {.one_call = false, .after_marker = false}), nullptr);
    if (dialect->format != CallFormat::kChannels) {
      EXPECT_NE(GrammarOf(*dialect, {.one_call = true, .after_marker = true}), nullptr);
    }
  }
}

struct Walk {
  std::string dialect;
  std::vector<std::string> one;   // one call
  std::vector<std::string> more;  // several
  std::vector<std::string> bad;
};

TEST(CallGrammar, AllowsCallsOnly) {
  const std::string good = R"({"name": "get_weather", "arguments": {"city": "Rome"}})";
  const std::string ping = R"({"name": "ping", "arguments": {"x": [1]}})";
  const std::string bad = R"({"name": "get_weather", "arguments": {"town": "Rome"}})";
  const std::string unknown = R"({"name": "other", "arguments": {}})";
  const auto hermes = [](const std::string& call) {
    return "<tool_call>\n" + call + "\n</tool_call>";
  };
  const auto qwen_value = [](const std::string& key, const std::string& value) {
    return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
  };
  const auto qwen = [](const std::string& name, const std::string& parameters) {
    return "<tool_call>\n<function=" + name + ">\n" + parameters + "</function>\n</tool_call>";
  };
  const auto glm_value = [](const std::string& key, const std::string& value) {
    return "<arg_key>" + key + "</arg_key>\n<arg_value>" + value + "</arg_value>\n";
  };
  const auto glm = [](const std::string& name, const std::string& parameters) {
    return "<tool_call>" + name + "\n" + parameters + "</tool_call>";
  };
  const std::vector<Walk> walks = {
      {"hermes",
       {hermes(good), "\n\n" + hermes(ping)},
       {hermes(good) + "\n" + hermes(ping)},
       {"", "Hello", hermes(bad), hermes(unknown), hermes(good) + " so"}},
      {"mistral",
       {"[TOOL_CALLS][" + good + "]"},
       {"[TOOL_CALLS][" + good + ", " + ping + "]"},
       {"[TOOL_CALLS][]", "[TOOL_CALLS][" + bad + "]"}},
      {"llama3_json",
       {R"({"name": "get_weather", "parameters": {"city": "Rome"}})"},
       {R"({"name": "ping", "parameters": {}}; {"name": "ping", "parameters": {}})"},
       {good, "x"}},
      {"qwen3_coder",
       {qwen("get_weather", qwen_value("city", "Rome")),
        qwen("get_weather", qwen_value("city", "a <b> \n c") + qwen_value("days", "3")),
        qwen("ping", ""),
        qwen("ping", qwen_value("x", "[1"))},
       {qwen("ping", "") + "\n" + qwen("get_weather", qwen_value("city", "Rome"))},
       {qwen("get_weather", ""),
        qwen("get_weather", qwen_value("days", "3")),
        qwen("get_weather", qwen_value("city", "Rome") + qwen_value("days", "three")),
        qwen("get_weather", qwen_value("city", "Rome") + qwen_value("town", "x")),
        qwen("other", "")}},
      {"glm45",
       {glm("get_weather", glm_value("city", "Rome") + glm_value("days", "3")), glm("ping", "")},
       {glm("ping", "") + "\n" + glm("ping", glm_value("a", "b"))},
       {glm("get_weather", glm_value("days", "3")),
        glm("get_weather", glm_value("city", "Rome") + glm_value("days", "3.5"))}},
      {"pythonic",
       {R"([get_weather(city="Rome")])",
        R"([get_weather(city="R\"", days=3)])",
        "[ping()]",
        R"([ping(a=[1, {"b": null}], c="x")])"},
       {R"([ping(), get_weather(city="Rome")])"},
       {"[]",
        "[get_weather()]",
        "[get_weather(days=3)]",
        R"([get_weather(city="Rome", days="3")])",
        R"([get_weather(city="Rome", town="x")])",
        "[other()]"}},
      {"kimi_k2",
       {"<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|"
        ">{}"
        "<|tool_call_end|><|tool_calls_section_end|>"},
       {"<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|"
        ">{}"
        "<|tool_call_end|><|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>"},
       {"<|tool_calls_section_begin|><|tool_calls_section_end|>"}},
  };
  for (const Walk& walk : walks) {
    const auto dialect = Named(walk.dialect);
    const auto any = GrammarOf(*dialect, {.one_call = false, .after_marker = false});
    const auto once = GrammarOf(*dialect, {.one_call = true, .after_marker = false});
    ASSERT_TRUE(any != nullptr && once != nullptr);
    for (const std::string& text : walk.one) {
      EXPECT_TRUE(Matches(*any, text)) << text;
      EXPECT_TRUE(Matches(*once, text)) << text;
      const auto parsers = MakeParsers({.dialect = {dialect, nullptr}, .tools = SampleTools()}, "");
      std::vector<OutputDelta> deltas;
      const auto parser = parsers->Make();
      parser->Push(text, &deltas);
      parser->Finish(&deltas);
      ASSERT_FALSE(deltas.empty());
      EXPECT_EQ(deltas[0].kind, OutputDelta::Kind::kToolCall) << text;
    }
    for (const std::string& text : walk.more) {
      EXPECT_TRUE(Matches(*any, text)) << text;
      EXPECT_FALSE(Matches(*once, text)) << text;
    }
    for (const std::string& text : walk.bad) {
      EXPECT_FALSE(Matches(*any, text)) << text;
    }
  }
}

TEST(CallGrammar, GoesOnBehindTheMarker) {
  const auto dialect = Named("hermes");
  EXPECT_EQ(FirstMarker(*dialect), "<tool_call>");
  const auto grammar = GrammarOf(*dialect, {.one_call = false, .after_marker = true});
  ASSERT_NE(grammar, nullptr);
  const std::string ping = R"({"name": "ping", "arguments": {}})";
  EXPECT_TRUE(Matches(*grammar, "\n" + ping + "\n</tool_call>"));
  EXPECT_TRUE(Matches(*grammar, ping + "\n</tool_call>\n<tool_call>\n" + ping + "\n</tool_call>"));
  EXPECT_FALSE(Matches(*grammar, "<tool_call>\n" + ping + "\n</tool_call>"));
}

TEST(CallGrammar, EverySampleFollowsIt) {
  // What the grammar allows and what models write in a dialect of parameters are the same thing.
  for (const std::string name : {"qwen3_coder", "glm45", "seed_oss", "minimax_m2"}) {
    SCOPED_TRACE(name);
    const auto dialect = Named(name);
    const auto grammar = GrammarOf(*dialect, {.one_call = false, .after_marker = false});
    ASSERT_NE(grammar, nullptr);
    const std::string text = dialect->section_start + dialect->start.front() + "get_weather" +
                             dialect->name_end + dialect->key_start + "city" + dialect->key_end +
                             dialect->value_start + "Rome <3 \"x\"" + dialect->value_end +
                             dialect->end + dialect->section_end;
    EXPECT_TRUE(Matches(*grammar, text)) << text;
    const auto parsers = MakeParsers({.dialect = {dialect, nullptr}, .tools = SampleTools()}, "");
    const auto parser = parsers->Make();
    std::vector<OutputDelta> deltas;
    parser->Push(text, &deltas);
    parser->Finish(&deltas);
    std::string arguments;
    for (const OutputDelta& delta : deltas) {
      arguments += delta.kind == OutputDelta::Kind::kToolArguments ? delta.text : "";
    }
    EXPECT_EQ(arguments, R"({"city": "Rome <3 \"x\""})");
  }
}

TEST(CallGrammar, SaysWhichSchemasHold) {
  const auto holds = [](const std::string& dialect, const std::string& property) {
    const auto schema = PrepareJsonSchema(
        R"({"type":"object","$defs":{"unit":{"enum":["c","f"]}},"properties":{"a":)" + property +
            "}}",
        "");
    EXPECT_TRUE(schema.ok()) << property;
    return CheckSchemaHolds(*Named(dialect), *schema).ok();
  };
  for (const char* const property : {R"({"type":"string"})",
                                     R"({"type":"integer","minimum":3})",
                                     R"({"enum":["a","b c"]})",
                                     R"({"type":"array","items":{"type":"string","maxLength":3}})",
                                     R"({"$ref":"#/$defs/unit"})",
                                     R"({"anyOf":[{"type":"string"},{"type":"null"}]})",
                                     "{}"}) {
    EXPECT_TRUE(holds("qwen3_coder", property)) << property;
    EXPECT_TRUE(holds("pythonic", property)) << property;
  }
  for (const char* const property : {R"({"type":"string","pattern":"^a$"})",
                                     R"({"type":"string","maxLength":3})",
                                     R"({"enum":["a"," b"]})",
                                     R"({"enum":["a",1]})",
                                     R"({"anyOf":[{"type":"string"},{"type":"object"}]})"}) {
    EXPECT_FALSE(holds("qwen3_coder", property)) << property;
    EXPECT_TRUE(holds("pythonic", property)) << property;
    EXPECT_TRUE(holds("hermes", property)) << property;
  }
}

}  // namespace
}  // namespace inferd::text
