// SPDX-License-Identifier: Apache-2.0
// Every dialect's samples, at every cut; and what happens to calls that are none.
#include "text/dialect_parser.h"

#include "dialect_samples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace inferd::text {
namespace {

Dialect DialectOf(const std::string& calls, const std::string& reasoning) {
  static const auto kTable = DialectTable::Load();
  EXPECT_TRUE(kTable.ok()) << kTable.error().message();
  const auto dialect =
      kTable->Select("", calls.empty() ? "none" : calls, reasoning.empty() ? "none" : reasoning);
  EXPECT_TRUE(dialect.ok()) << dialect.error().message();
  return *dialect;
}

Parsed Join(const std::vector<OutputDelta>& deltas) {
  Parsed parsed;
  for (const OutputDelta& delta : deltas) {
    switch (delta.kind) {
      case OutputDelta::Kind::kContent:
        parsed.content += delta.text;
        break;
      case OutputDelta::Kind::kReasoning:
        parsed.thought += delta.text;
        break;
      case OutputDelta::Kind::kToolCall:
        EXPECT_EQ(delta.call, static_cast<int>(parsed.calls.size()));
        EXPECT_FALSE(delta.id.empty());
        parsed.calls.push_back({delta.text, "", delta.id});
        break;
      case OutputDelta::Kind::kToolArguments:
        EXPECT_EQ(delta.call, static_cast<int>(parsed.calls.size()) - 1);
        EXPECT_FALSE(parsed.calls.empty());
        if (!parsed.calls.empty()) {
          parsed.calls.back().arguments += delta.text;
        }
        break;
    }
  }
  return parsed;
}

Parsed Parse(const OutputParserFactory& factory, const std::vector<std::string_view>& pieces) {
  const auto parser = factory.Make();
  std::vector<OutputDelta> deltas;
  for (const std::string_view piece : pieces) {
    std::vector<OutputDelta> more;
    parser->Push(piece, &more);
    for (OutputDelta& delta : more) {
      deltas.push_back(std::move(delta));
    }
  }
  parser->Finish(&deltas);
  Parsed parsed = Join(deltas);
  for (ExpectedCall& call : parsed.calls) {
    if (call.id.starts_with("call_") || call.id.size() == 9) {
      call.id = call.id == "123456789" ? call.id : "";  // random
    }
  }
  return parsed;
}

Parsed ParseAll(const Sample& sample, int max_calls = 0) {
  const auto factory = MakeParsers({.dialect = DialectOf(sample.calls, sample.reasoning),
                                    .tools = SampleTools(),
                                    .max_calls = max_calls},
                                   sample.prompt);
  return Parse(*factory, {sample.reply});
}

/// Where a character begins, so that pieces are valid UTF-8.
std::vector<std::size_t> Cuts(std::string_view text) {
  std::vector<std::size_t> cuts;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) {
      cuts.push_back(i);
    }
  }
  return cuts;
}

class Dialects : public testing::TestWithParam<Sample> {};

TEST_P(Dialects, AreReadAsTheyAreMeant) {
  const Sample& sample = GetParam();
  const Parsed parsed = ParseAll(sample);
  EXPECT_EQ(parsed.content, sample.content);
  EXPECT_EQ(parsed.thought, sample.thought);
  ASSERT_EQ(parsed.calls.size(), sample.expected.size());
  for (std::size_t i = 0; i < sample.expected.size(); ++i) {
    EXPECT_EQ(parsed.calls[i].name, sample.expected[i].name);
    if (!sample.expected[i].id.empty()) {
      EXPECT_EQ(parsed.calls[i].id, sample.expected[i].id);
    }
    ASSERT_TRUE(nlohmann::json::accept(parsed.calls[i].arguments)) << parsed.calls[i].arguments;
    EXPECT_EQ(nlohmann::json::parse(parsed.calls[i].arguments),
              nlohmann::json::parse(sample.expected[i].arguments));
  }
}

TEST_P(Dialects, GiveTheSameAtEveryCut) {
  const Sample& sample = GetParam();
  const auto factory =
      MakeParsers({.dialect = DialectOf(sample.calls, sample.reasoning), .tools = SampleTools()},
                  sample.prompt);
  const std::string_view reply = sample.reply;
  const Parsed whole = Parse(*factory, {reply});
  for (const std::size_t cut : Cuts(reply)) {
    ASSERT_EQ(Parse(*factory, {reply.substr(0, cut), reply.substr(cut)}), whole) << cut;
  }
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string_view> pieces;
    std::size_t begin = 0;
    for (const std::size_t cut : Cuts(reply)) {
      if (random() % (1 + round % 12) == 0) {
        pieces.push_back(reply.substr(begin, cut - begin));
        begin = cut;
      }
    }
    pieces.push_back(reply.substr(begin));
    ASSERT_EQ(Parse(*factory, pieces), whole) << round;
  }
}

/// Cut short anywhere, a reply is valid, and nothing but markers and the call's own words is lost.
TEST_P(Dialects, CutShortStayValid) {
  const Sample& sample = GetParam();
  const auto factory =
      MakeParsers({.dialect = DialectOf(sample.calls, sample.reasoning), .tools = SampleTools()},
                  sample.prompt);
  const std::string_view reply = sample.reply;
  const Parsed whole = Parse(*factory, {reply});
  for (const std::size_t cut : Cuts(reply)) {
    const Parsed parsed = Parse(*factory, {reply.substr(0, cut)});
    ASSERT_LE(parsed.calls.size(), whole.calls.size()) << reply.substr(0, cut);
    for (std::size_t i = 0; i < parsed.calls.size(); ++i) {
      ASSERT_EQ(parsed.calls[i].name, whole.calls[i].name);
      if (i + 1 < parsed.calls.size()) {
        ASSERT_EQ(parsed.calls[i], whole.calls[i]);
      }
    }
    // A cut marker is text.
    ASSERT_TRUE(whole.thought.starts_with(parsed.thought) ||
                parsed.thought.starts_with(whole.thought))
        << reply.substr(0, cut);
  }
}

TEST_P(Dialects, EndWithTheLastAllowedCall) {
  const Sample& sample = GetParam();
  const auto factory = MakeParsers({.dialect = DialectOf(sample.calls, sample.reasoning),
                                    .tools = SampleTools(),
                                    .max_calls = 1},
                                   sample.prompt);
  const auto parser = factory->Make();
  std::vector<OutputDelta> deltas;
  for (const char c : sample.reply) {
    parser->Push({&c, 1}, &deltas);
  }
  EXPECT_EQ(parser->ended(),
            !sample.expected.empty() && Join(deltas).calls.front().arguments.ends_with('}'));
  parser->Finish(&deltas);
  EXPECT_EQ(Join(deltas).calls.size(), std::min<std::size_t>(1, sample.expected.size()));
}

TEST_P(Dialects, WithoutToolsKeepCallsAsText) {
  const Sample& sample = GetParam();
  Dialect dialect = DialectOf(sample.calls, sample.reasoning);
  dialect.calls = nullptr;
  const auto factory = MakeParsers({.dialect = dialect}, sample.prompt);
  if (factory == nullptr) {
    EXPECT_TRUE(sample.reasoning.empty());
    return;
  }
  const Parsed parsed = Parse(*factory, {sample.reply});
  EXPECT_TRUE(parsed.calls.empty());
  EXPECT_EQ(parsed.thought, sample.thought);
}

std::string NameOf(const testing::TestParamInfo<Sample>& info) {
  std::string name = info.param.calls + std::to_string(info.index);
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Samples, Dialects, testing::ValuesIn(Samples()), NameOf);

TEST(DialectSamples, CoverEveryCallDialect) {
  const auto table = DialectTable::Load();
  ASSERT_TRUE(table.ok());
  std::set<std::string> sampled;
  for (const Sample& sample : Samples()) {
    sampled.insert(sample.calls);
  }
  for (const auto& calls : table->calls()) {
    EXPECT_TRUE(sampled.contains(calls->name)) << calls->name;
  }
}

TEST(NoCall, ComesBackAsContent) {
  const struct {
    std::string calls;
    std::string reply;
  } kCases[] = {
      {"hermes", "<tool_call>\nnot JSON\n</tool_call>"},
      {"hermes", "<tool_call>\n{\"name\": \"run\"\n"},
      {"hermes", "<tool_call>\n{\"arguments\": {\"a\": 1}}\n</tool_call>"},
      {"hermes", "<tool_call>\n{\"name\": 5, \"arguments\": {}}</tool_call> end"},
      {"hermes", "<tool_call></tool_call>"},
      {"hermes", "a <tool_cal and <tool_ca"},
      {"llama3_json", "{\"answer\": 42, \"name\": \"run\"}"},
      {"llama3_json", "{\"name\": \"nobody\", \"parameters\": {}}"},
      {"llama3_json", "{\"name\": \"run\", \"param"},
      {"llama3_json", "[1, 2, 3]"},
      {"pythonic", "[1, 2, 3]"},
      {"pythonic", "[nobody(a=1)]"},
      {"pythonic", "[run"},
      {"mistral", "[TOOL_CALLS] nothing"},
      {"mistral_args", "[TOOL_CALLS]not a name[ARGS]{}"},
      {"deepseek_v31", "<｜tool▁calls▁begin｜>hm<｜tool▁calls▁end｜>"},
      {"deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"},
      {"deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>run"},
      {"kimi_k2",
       "<|tool_calls_section_begin|><|tool_call_begin|>a b<|tool_call_argument_begin|>{}"},
      {"glm45", "<tool_call>{\"name\": \"run\"}\n</tool_call>"},
      {"qwen3_coder", "<tool_call>\n{\"name\": \"run\"}\n</tool_call>"},
      {"granite", "<|tool_call|>[]"},
      {"phi4_mini_json", "functools are nice"},
  };
  for (const auto& [calls, reply] : kCases) {
    const Parsed parsed = ParseAll({calls, "", reply, "", "", {}});
    EXPECT_EQ(parsed.content, reply) << calls;
    EXPECT_TRUE(parsed.calls.empty()) << calls;
    for (const std::size_t cut : Cuts(reply)) {
      const auto factory =
          MakeParsers({.dialect = DialectOf(calls, ""), .tools = SampleTools()}, "");
      EXPECT_EQ(Parse(*factory, {reply.substr(0, cut), std::string_view(reply).substr(cut)}),
                parsed);
    }
  }
}

TEST(NoCall, TextAfterABrokenCallIsKept) {
  const Parsed parsed =
      ParseAll({"qwen3_coder",
                "",
                "<tool_call>\n<function=run>\n<parameter=code>\nx\n</parameter>\n<oops>",
                "",
                "",
                {}});
  ASSERT_EQ(parsed.calls.size(), 1U);
  EXPECT_EQ(parsed.calls[0].arguments, R"({"code": "x"})");
  EXPECT_EQ(parsed.content,
            "<o"
            "ops>");
}

TEST(Mended, CommonMistakes) {
  const struct {
    std::string reply;
    std::string arguments;
  } kCases[] = {
      {R"(<tool_call>{"name": "run", "arguments": {"a": 1}</tool_call>)", R"({"a": 1})"},
      {R"(<tool_call>{"name": "run", "arguments": {"a": 1}}}</tool_call>)", R"({"a": 1})"},
      {R"(<tool_call>{"arguments": {"a": 1}, "name": "run"}</tool_call>)", R"({"a": 1})"},
      {R"(<tool_call>{"name": "run", "arguments": "{\"a\": \"\u00e9\\n\"}"}</tool_call>)",
       R"({"a": "é\n"})"},
      {R"(<tool_call>{"name": "run"}</tool_call>)", "{}"},
      {R"(<tool_call>{"name": "run", "arguments": null}</tool_call>)", "{}"},
      {"<tool_call>{\"name\": \"run\", \"arguments\": {\"a\": \"x\ny\"}}</tool_call>",
       R"({"a": "x\ny"})"},
      {R"(<tool_call>{"name": "run", "arguments": {"a": "</tool_call>"}}</tool_call>)",
       R"({"a": "</tool_call>"})"},
  };
  for (const auto& [reply, arguments] : kCases) {
    const Parsed parsed = ParseAll({"hermes", "", reply, "", "", {}});
    ASSERT_EQ(parsed.calls.size(), 1U) << reply;
    EXPECT_EQ(parsed.calls[0].arguments, arguments) << reply;
    EXPECT_EQ(parsed.content, "") << reply;
  }
}

struct Start {
  std::string prompt;
  std::size_t continued;
  bool in_reasoning;
};

TEST(Reasoning, BeginsWhereThePromptEnds) {
  const Start kStarts[] = {
      {"<|user|>hi<|assistant|><think>\n", 0, true},
      {"<|user|>hi<|assistant|>", 0, false},
      {"<|user|>hi<|assistant|><think>\n\n</think>\n\n", 0, false},
      {"<|user|>I say <think><|assistant|>", 0, false},
      {"<|user|><think><|assistant|>Half a thought", 14, false},
      {"<|user|>hi<|assistant|><think>Half a thought", 21, true},
      {"<|user|>hi<|assistant|><think>Half a thought", 14, true},
      {"<|user|>hi<|assistant|><think>x</think> so", 19, false},
  };
  for (const auto& [prompt, continued, in_reasoning] : kStarts) {
    const auto parser = MakeParsers({.dialect = DialectOf("", "think")}, prompt, continued)->Make();
    EXPECT_EQ(parser->in_reasoning(), in_reasoning) << prompt;
  }
  const auto harmony = MakeParsers({.dialect = DialectOf("openai", "openai")},
                                   "<|start|>assistant<|channel|>analysis<|message|>So")
                           ->Make();
  EXPECT_TRUE(harmony->in_reasoning());
}

TEST(Reasoning, IsFirstOrNot) {
  const Parsed parsed = ParseAll({"", "think", "The tag <think> opens.", "", "", {}});
  EXPECT_EQ(parsed.content, "The tag <think> opens.");
  const Parsed cut = ParseAll({"", "think", "<think>half", "", "", {}});
  EXPECT_EQ(cut.thought, "half");
  EXPECT_EQ(cut.content, "");
}

TEST(Reasoning, CanBeDropped) {
  const auto factory = MakeParsers({.dialect = DialectOf("", "think"), .reasoning = false}, "");
  const Parsed parsed = Parse(*factory, {"<think>hm\n", "x</think>\n\nyes \n"});
  EXPECT_EQ(parsed.thought, "");
  EXPECT_EQ(parsed.content, "yes \n");
}

}  // namespace
}  // namespace inferd::text
