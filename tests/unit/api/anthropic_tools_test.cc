// SPDX-License-Identifier: Apache-2.0
// Tools, thinking and output formats of Anthropic's API, over HTTP: every dialect streamed and
// whole, choices, and rounds of tool use.
#include "dialect_fixture.h"

#include <string>
#include <vector>

namespace inferd::api {
namespace {

const Json kTools = Json::parse(R"([
  {"name":"get_weather","description":"Weather.","input_schema":{"type":"object","properties":{
    "city":{"type":"string"},"days":{"type":"integer"},"where":{"type":"object"},
    "list":{"type":"array"}}}},
  {"name":"run","input_schema":{"type":"object","properties":{
    "code":{"type":"string"},"exact":{"type":"boolean"},
    "maybe":{"anyOf":[{"type":"string"},{"type":"null"}]},"any":{}}}},
  {"type":"custom","name":"ping","input_schema":{"type":"object"}}])");

class AnthropicToolsTest : public DialectServerTest {
 protected:
  static Json With(const Json& fields) {
    return Over({{"model", "test-model"},
                 {"max_tokens", 10'000},
                 {"tools", kTools},
                 {"messages", {{{"role", "user"}, {"content", "hi"}}}}},
                fields);
  }

  Json Whole(const Json& fields) {
    const Reply reply = Ask("POST", "/v1/messages", With(fields));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }

  /// What a client puts together from the events.
  Json Streamed(Json fields) {
    fields["stream"] = true;
    const Reply reply = Ask("POST", "/v1/messages", With(fields));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return MessageFromEvents(NamedEvents(reply.body));
  }

  static Json WithoutIds(Json message) {
    message.erase("id");
    message.erase("usage");
    for (Json& block : message["content"]) {
      block.erase("id");
    }
    return message;
  }
};

TEST_F(AnthropicToolsTest, EveryDialectStreamsWhatItAnswersWhole) {
  for (const text::Sample& sample : text::Samples()) {
    if (!sample.prompt.empty()) {
      continue;  // needs chat_template_kwargs, which this API lacks
    }
    SCOPED_TRACE(sample.calls + ": " + sample.reply);
    StartWith(sample.calls, sample.reasoning);
    Says(sample.reply);
    const Json whole = Whole({});
    EXPECT_EQ(whole["stop_reason"], sample.expected.empty() ? "end_turn" : "tool_use");
    std::string said;
    std::string thought;
    std::vector<Json> calls;
    for (const Json& block : whole["content"]) {
      if (block["type"] == "text") {
        said += block["text"].get<std::string>();
      } else if (block["type"] == "thinking") {
        thought += block["thinking"].get<std::string>();
      } else {
        EXPECT_FALSE(block["id"].get<std::string>().empty());
        calls.push_back(block);
      }
    }
    EXPECT_EQ(said, sample.content);
    EXPECT_EQ(thought, sample.thought);
    ASSERT_EQ(calls.size(), sample.expected.size());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(calls[i]["name"], sample.expected[i].name);
      EXPECT_EQ(calls[i]["input"], Json::parse(sample.expected[i].arguments));
    }
    EXPECT_EQ(WithoutIds(Streamed({})), WithoutIds(whole));
  }
}

TEST_F(AnthropicToolsTest, ChoiceForcesCalls) {
  StartWith("hermes");
  Says(kHermesCall + "\n" + kHermesCall);
  const std::string twice = kHermesCall + "\n" + kHermesCall;
  const std::string other = "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>";
  const struct {
    Json choice;
    std::size_t calls;
    bool text, one, two, ping;  // the model may say
  } kCases[] = {
      {{{"type", "auto"}}, 2, true, true, true, true},
      {{{"type", "auto"}, {"disable_parallel_tool_use", true}}, 1, true, true, true, true},
      {{{"type", "any"}}, 2, false, true, true, true},
      {{{"type", "any"}, {"disable_parallel_tool_use", true}}, 1, false, true, false, true},
      {{{"type", "tool"}, {"name", "run"}}, 1, false, true, false, false},
      {{{"type", "none"}}, 0, true, true, true, true},
  };
  for (const auto& expected : kCases) {
    SCOPED_TRACE(expected.choice.dump());
    const Json fields = {{"tool_choice", expected.choice}};
    const Json whole = Whole(fields);
    std::size_t calls = 0;
    for (const Json& block : whole["content"]) {
      calls += block["type"] == "tool_use" ? 1 : 0;
    }
    EXPECT_EQ(calls, expected.calls);
    EXPECT_EQ(whole["stop_reason"], calls > 0 ? "tool_use" : "end_turn");
    EXPECT_EQ(MaySay("Just text"), expected.text);
    EXPECT_EQ(MaySay(kHermesCall), expected.one);
    EXPECT_EQ(MaySay(twice), expected.two);
    EXPECT_EQ(MaySay(other), expected.ping);
    EXPECT_EQ(WithoutIds(Streamed(fields)), WithoutIds(whole));
  }
}

TEST_F(AnthropicToolsTest, SchemasHoldWhereCallsAreForcedOrStrict) {
  StartWith("hermes");
  Says(kHermesCall);
  const std::string wrong =
      "<tool_call>\n{\"name\": \"run\", \"arguments\": {\"code\": 1}}\n</tool_call>";
  Whole({{"tool_choice", {{"type", "any"}}}});
  EXPECT_FALSE(MaySay(wrong));
  Whole({});
  EXPECT_TRUE(MaySay(wrong));
  Json tools = kTools;
  tools[1]["strict"] = true;
  Whole({{"tools", tools}});
  EXPECT_FALSE(MaySay(wrong));
  EXPECT_TRUE(MaySay("Just text"));
  tools[1]["input_schema"]["properties"]["code"] = {{"type", "string"}, {"format", "nonsense"}};
  const Reply reply = Ask("POST", "/v1/messages", With({{"tools", tools}}));
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("/tools/1/input_schema/properties/code"), std::string::npos)
      << reply.body;
}

TEST_F(AnthropicToolsTest, ARoundOfToolUseReachesTheTemplate) {
  StartWith(
      "hermes",
      "think",
      {},
      std::string("{% for m in messages %}<{{ m.reasoning }}>") +
          "{{ m.tool_call_id }}{{ m.tool_calls[0].id if m.tool_calls else '' }} {% endfor %}" +
          kTemplate);
  Says("<think>\nhm\n</think>\n\nLooking.\n" + kHermesCall);
  const Json first = Whole({{"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}});
  ASSERT_EQ(first["content"].size(), 3U) << first;
  const std::string id = first["content"][2]["id"];
  Says("Done.");
  const Json second = Whole({{"messages",
                              {{{"role", "user"}, {"content", "hi"}},
                               {{"role", "assistant"}, {"content", first["content"]}},
                               {{"role", "user"},
                                {"content",
                                 {{{"type", "tool_result"},
                                   {"tool_use_id", id},
                                   {"content", {{{"type", "text"}, {"text", "42"}}}}},
                                  {{"type", "text"}, {"text", "and?"}}}}}}}});
  EXPECT_EQ(second["content"], Json::parse(R"([{"type":"text","text":"Done."}])"));
  EXPECT_EQ(second["stop_reason"], "end_turn");
  EXPECT_EQ(Prompt(),
            "<s><> <hm>" + id + " <>" + id +
                " <> <s><|user|>user:hi<|user|>assistant:Looking.[run {\"code\": \"1\"}]"
                "<|user|>tool:42<|user|>user:and?<|assistant|>");
}

TEST_F(AnthropicToolsTest, TokensOfToolsAreCounted) {
  StartWith("hermes",
            "none",
            {},
            "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[0].content }}");
  Says("ok");
  for (const Json& fields : {Json::object(), Json{{"tool_choice", {{"type", "none"}}}}}) {
    Whole(fields);
    Json body = With(fields);
    body.erase("max_tokens");
    const Reply reply = Ask("POST", "/v1/messages/count_tokens", body);
    EXPECT_EQ(Json::parse(reply.body)["input_tokens"], service_.last()->prompt.size());
  }
  EXPECT_EQ(Prompt(), "<s>hi");
  Whole({});
  EXPECT_NE(Prompt().find(R"({"type": "function", "function": {"name": "get_weather", )"
                          R"("description": "Weather.", "parameters": {"properties": {"city": )"),
            std::string::npos)
      << Prompt();
}

TEST_F(AnthropicToolsTest, OutputFormatsConstrain) {
  StartWith("hermes");
  Says(R"({"a":1})");
  const Json format = {{"type", "json_schema"},
                       {"schema",
                        {{"type", "object"},
                         {"properties", {{"a", {{"type", "integer"}}}}},
                         {"required", {"a"}},
                         {"additionalProperties", false}}}};
  for (const Json& fields :
       {Json{{"output_config", {{"format", format}}}}, Json{{"output_format", format}}}) {
    Whole(fields);
    EXPECT_TRUE(MaySay(R"({"a":1})"));
    EXPECT_FALSE(MaySay(R"({"a":"x"})"));
    EXPECT_FALSE(MaySay("text"));
  }
  Json both = {{"output_config", {{"format", format}}}, {"output_format", format}};
  ExpectRefused("/v1/messages", With(both), "output_format");
  Json forced = {{"output_format", format}, {"tool_choice", {{"type", "any"}}}};
  ExpectRefused("/v1/messages", With(forced), "tool_choice");
}

}  // namespace
}  // namespace inferd::api
