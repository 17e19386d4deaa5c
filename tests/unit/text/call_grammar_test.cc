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

}  // namespace
}  // namespace inferd::text
