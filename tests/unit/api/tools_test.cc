// SPDX-License-Identifier: Apache-2.0
// Tools and reasoning over HTTP: every dialect streamed and whole, choices, limits, and what
// reaches the template.
#include "dialect_fixture.h"

#include <algorithm>

namespace inferd::api {
namespace {

const std::string kTools = R"("tools":[
  {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{
    "city":{"type":"string"},"days":{"type":"integer"},"where":{"type":"object"},
    "list":{"type":"array"}}}}},
  {"type":"function","function":{"name":"run","parameters":{"type":"object","properties":{
    "code":{"type":"string"},"exact":{"type":"boolean"},
    "maybe":{"anyOf":[{"type":"string"},{"type":"null"}]},"any":{}}}}},
  {"type":"function","function":{"name":"ping"}}])";

const std::string kOneCall =
    "Sure.\n<tool_call>\n{\"name\": \"run\", \"arguments\": {\"code\": \"1\"}}\n</tool_call>";

struct Message {
  std::string content;
  bool has_content = false;  // not null
  std::string reasoning;
  std::vector<text::ExpectedCall> calls;
  std::string finish;
  Json usage;
};

class ToolsTest : public DialectServerTest {
 protected:
  Json Ask(const std::string& body, int status = 200) {
    const Reply reply = Post(port_, "/v1/chat/completions", body);
    EXPECT_EQ(reply.status, status) << reply.body;
    return Json::parse(reply.body);
  }

  Message Whole(const std::string& fields) {
    const Json body = Ask(ChatWith(fields));
    const Json& choice = body["choices"][0];
    const Json& message = choice["message"];
    Message whole;
    whole.has_content = message["content"].is_string();
    whole.content = whole.has_content ? message["content"].get<std::string>() : "";
    whole.reasoning = message.value("reasoning", "");
    EXPECT_EQ(message.value("reasoning_content", ""), whole.reasoning);
    for (const Json& call : message.value("tool_calls", Json::array())) {
      EXPECT_EQ(call["type"], "function");
      whole.calls.push_back({call["function"]["name"], call["function"]["arguments"], call["id"]});
    }
    EXPECT_NE(message.contains("tool_calls"), whole.calls.empty());
    whole.finish = choice["finish_reason"];
    whole.usage = body["usage"];
    return whole;
  }

  Message Streamed(const std::string& fields) {
    const Reply reply =
        Post(port_,
             "/v1/chat/completions",
             ChatWith(fields + R"(,"stream":true,"stream_options":{"include_usage":true})"));
    EXPECT_EQ(reply.status, 200) << reply.body;
    Message joined;
    for (const Json& event : Events(reply.body)) {
      if (event["choices"].empty()) {
        joined.usage = event["usage"];
        continue;
      }
      const Json& choice = event["choices"][0];
      const Json& delta = choice["delta"];
      if (delta.contains("content") && delta["content"].is_string()) {
        joined.has_content = true;
        joined.content += delta["content"].get<std::string>();
      }
      joined.reasoning += delta.value("reasoning", "");
      EXPECT_EQ(delta.value("reasoning", ""), delta.value("reasoning_content", ""));
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        const std::size_t index = call["index"];
        if (call.contains("id")) {  // once, first
          EXPECT_EQ(index, joined.calls.size());
          EXPECT_EQ(call["type"], "function");
          joined.calls.push_back({call["function"]["name"], "", call["id"]});
        } else {
          EXPECT_FALSE(call["function"].contains("name"));
        }
        EXPECT_EQ(index + 1, joined.calls.size());
        if (!joined.calls.empty()) {
          joined.calls.back().arguments += call["function"]["arguments"].get<std::string>();
        }
      }
      if (!choice["finish_reason"].is_null()) {
        EXPECT_EQ(joined.finish, "");
        joined.finish = choice["finish_reason"];
      }
    }
    return joined;
  }

  static void ExpectSame(const Message& a, const Message& b) {
    EXPECT_EQ(a.content, b.content);
    EXPECT_EQ(a.has_content, b.has_content);
    EXPECT_EQ(a.reasoning, b.reasoning);
    EXPECT_EQ(a.finish, b.finish);
    EXPECT_EQ(a.usage["completion_tokens"], b.usage["completion_tokens"]);
    EXPECT_EQ(a.usage.value("completion_tokens_details", Json()),
              b.usage.value("completion_tokens_details", Json()));
    ASSERT_EQ(a.calls.size(), b.calls.size());
    for (std::size_t i = 0; i < a.calls.size(); ++i) {
      EXPECT_EQ(a.calls[i].name, b.calls[i].name);
      EXPECT_EQ(a.calls[i].arguments, b.calls[i].arguments);
    }
  }
};

TEST_F(ToolsTest, EveryDialectStreamsWhatItAnswersWhole) {
  for (const text::Sample& sample : text::Samples()) {
    SCOPED_TRACE(sample.calls + ": " + sample.reply);
    StartWith(sample.calls, sample.reasoning);
    Says(sample.reply);
    const std::string fields =
        kTools + R"(,"chat_template_kwargs":{"tail":)" + Json(sample.prompt).dump() + "}";
    const Message whole = Whole(fields);
    EXPECT_EQ(whole.content, sample.content);
    EXPECT_EQ(whole.has_content, !sample.content.empty());
    EXPECT_EQ(whole.reasoning, sample.thought);
    EXPECT_EQ(whole.finish, sample.expected.empty() ? "stop" : "tool_calls");
    EXPECT_EQ(whole.usage.contains("completion_tokens_details"), !sample.thought.empty());
    ASSERT_EQ(whole.calls.size(), sample.expected.size());
    for (std::size_t i = 0; i < whole.calls.size(); ++i) {
      EXPECT_EQ(whole.calls[i].name, sample.expected[i].name);
      EXPECT_EQ(Json::parse(whole.calls[i].arguments), Json::parse(sample.expected[i].arguments));
      EXPECT_FALSE(whole.calls[i].id.empty());
    }
    ExpectSame(Streamed(fields), whole);
    const Message dropped = Whole(fields + R"(,"include_reasoning":false)");
    EXPECT_EQ(dropped.reasoning, "");
    EXPECT_EQ(dropped.content, whole.content);
    EXPECT_EQ(dropped.usage.value("completion_tokens_details", Json()),
              whole.usage.value("completion_tokens_details", Json()));
  }
}

TEST_F(ToolsTest, CutByTheTokenLimitBothWaysEnd) {
  StartWith("hermes", "think");
  const std::string reply = "<think>\U0001F60A</think>\U0001F60A\n" + kOneCall;
  Says(reply);
  for (std::size_t tokens = 1; tokens < reply.size(); ++tokens) {
    const std::string fields = kTools + R"(,"max_tokens":)" + std::to_string(tokens);
    const Message whole = Whole(fields);
    EXPECT_EQ(whole.finish, "length") << tokens;
    EXPECT_EQ(whole.usage["completion_tokens"], tokens);
    ExpectSame(Streamed(fields), whole);
  }
}

TEST_F(ToolsTest, ChoiceDecidesWhatCallsAre) {
  StartWith("hermes");
  for (const bool calls : {false, true}) {
    Says(calls ? kOneCall : "Just text");
    for (const char* choice : {"", R"(,"tool_choice":"auto")", R"(,"tool_choice":"none")"}) {
      const bool none = std::string_view(choice).ends_with("none\"");
      const bool called = calls && !none;
      const Message whole = Whole(kTools + choice);
      EXPECT_EQ(whole.calls.size(), called ? 1U : 0U) << choice;
      EXPECT_EQ(whole.finish, called ? "tool_calls" : "stop") << choice;
      EXPECT_EQ(whole.content, called ? "Sure." : calls ? kOneCall : "Just text") << choice;
      ExpectSame(Streamed(kTools + choice), whole);
    }
  }
  const struct {
    std::string fields;
    std::string param;
  } kRefused[] = {
      {R"("tools":[],"tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":"required")", "tool_choice"},
      {kTools + R"(,"tool_choice":"sometimes")", "tool_choice"},
      {kTools + R"(,"tool_choice":5)", "tool_choice"},
      {kTools + R"(,"tool_choice":{"type":"function"})", "tool_choice.function"},
      {kTools + R"(,"tool_choice":{"type":"x","function":{"name":"run"}})", "tool_choice.type"},
      {kTools + R"(,"tool_choice":{"type":"function","function":{"name":"nobody"}})",
       "tool_choice.function.name"},
      {kTools + R"(,"parallel_tool_calls":1)", "parallel_tool_calls"},
  };
  for (const auto& [fields, param] : kRefused) {
    EXPECT_EQ(Ask(ChatWith(fields), 400)["error"]["param"], param) << fields;
  }
}

TEST_F(ToolsTest, ToolsAreChecked) {
  StartWith("hermes");
  const auto tool = [](const std::string& function) {
    return R"("tools":[{"type":"function","function":)" + function + "}]";
  };
  const std::string name = "tools[0].function.name";
  const struct {
    std::string fields;
    std::string param;
  } kCases[] = {
      {R"("tools":{})", "tools"},
      {R"("tools":[5])", "tools[0]"},
      {R"("tools":[{"type":"web_search"}])", "tools[0].type"},
      {R"("tools":[{"type":"function"}])", "tools[0].function"},
      {tool("{}"), name},
      {tool(R"({"name":""})"), name},
      {tool(R"({"name":"two words"})"), name},
      {tool(R"({"name":")" + std::string(65, 'a') + "\"}"), name},
      {tool(R"({"name":"f","description":5})"), "tools[0].function.description"},
      {tool(R"({"name":"f","strict":"yes"})"), "tools[0].function.strict"},
      {tool(R"({"name":"f","parameters":[]})"), "tools[0].function.parameters"},
      {tool(R"({"name":"f","parameters":{"type":"string"}})"), "tools[0].function.parameters.type"},
      {tool(R"({"name":"f","parameters":{"properties":[]}})"),
       "tools[0].function.parameters.properties"},
      {R"("tools":[{"type":"function","function":{"name":"f"}},)"
       R"({"type":"function","function":{"name":"f"}}])",
       "tools[1].function.name"},
      {tool(R"({"name":"f","description":")" + std::string(300'000, 'x') + "\"}"), "tools[0]"},
  };
  for (const auto& [fields, param] : kCases) {
    EXPECT_EQ(Ask(ChatWith(fields), 400)["error"]["param"], param) << fields.substr(0, 200);
  }
  Says("ok");
  EXPECT_EQ(Whole(tool(R"({"name":"f","parameters":null,"strict":null})")).content, "ok");
}

TEST_F(ToolsTest, OneCallAtMostWhenNotParallel) {
  StartWith("hermes");
  Says(kOneCall + "\n" + kOneCall + " and more");
  EXPECT_EQ(Whole(kTools).calls.size(), 2U);
  const std::string single = kTools + R"(,"parallel_tool_calls":false)";
  const Message whole = Whole(single);
  EXPECT_EQ(whole.calls.size(), 1U);
  EXPECT_EQ(whole.content, "Sure.");
  EXPECT_EQ(whole.finish, "tool_calls");
  ExpectSame(Streamed(single), whole);
}

TEST_F(ToolsTest, TemplateSeesToolsAsTheyWereSent) {
  StartWith("hermes");
  Says("ok");
  Whole(
      R"("tools":[{"type":"function","function":{"name":"b","description":"<a> & 'q' \"r\" / \ud83d\ude0a 中文",)"
      R"("parameters":{"type":"object","properties":{"b":{"type":"number","minimum":1.5},"a":{}}}}}],)"
      R"("chat_template_kwargs":{"show_tools":true})");
  EXPECT_NE(
      Prompt().find(
          R"([{"type": "function", "function": {"name": "b", "description": "<a> & 'q' \"r\" / 😊 中文", )"
          R"("parameters": {"type": "object", "properties": {"b": {"type": "number", "minimum": 1.5}, "a": {}}}}}])"),
      std::string::npos)
      << Prompt();
  Whole(kTools + R"(,"tool_choice":"none","chat_template_kwargs":{"show_tools":true})");
  EXPECT_EQ(Prompt().find("get_weather"), std::string::npos);
}

TEST_F(ToolsTest, HistoryMayLackContent) {
  StartWith("hermes");
  Says("ok");
  const auto ask = [&](const std::string& content, const std::string& arguments) {
    Ask(R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant",)" + content +
        R"("tool_calls":[{"id":"call_1","type":"function","function":{"name":"run","arguments":)" +
        arguments +
        R"(}}]},{"role":"tool","tool_call_id":"call_1","content":[{"type":"text","text":"4"},)"
        R"({"type":"text","text":"2"}]}]})");
    return Prompt();
  };
  const std::string expected =
      "<s><|user|>user:hi<|user|>assistant:[run {}]<|user|>tool:4\n2<|assistant|>";
  for (const char* content : {"", R"("content":null,)", R"("content":"",)", R"("content":[],)"}) {
    for (const char* arguments : {R"("{}")", "{}", "null"}) {
      EXPECT_EQ(ask(content, arguments), expected) << content << arguments;
    }
  }
  EXPECT_EQ(ask("", R"("{\"b\": 1, \"a\": [\"<\"]}")"),
            "<s><|user|>user:hi<|user|>assistant:[run {\"b\": 1, \"a\": [\"<\"]}]"
            "<|user|>tool:4\n2<|assistant|>");
  for (const char* content : {R"("content":null)", R"("x":1)"}) {
    const Json error = Ask(R"({"messages":[{"role":"user",)" + std::string(content) + "}]}", 400);
    EXPECT_EQ(error["error"]["param"], "messages[0].content");
  }
}

TEST_F(ToolsTest, MarkersThatAreControlTokensReachTheParser) {
  StartWith("mine",
            "none",
            "calls: [{name: mine, format: json, start: ['<|assistant|>'], end: '<|user|>'}]");
  std::vector<std::int32_t> ids = Bytes("Hm");
  ids.push_back(kBos);  // a control token that is no marker stays hidden
  ids.push_back(kUser + 1);
  for (const std::int32_t id : Bytes(R"({"name": "ping", "arguments": {}})")) {
    ids.push_back(id);
  }
  ids.push_back(kUser);
  service_.SetScripts({WithEos(ids)});
  const Message whole = Whole(kTools);
  ASSERT_EQ(whole.calls.size(), 1U);
  EXPECT_EQ(whole.content, "Hm");
  ExpectSame(Streamed(kTools), whole);
  EXPECT_EQ(Whole(R"("temperature":0)").content, R"(Hm{"name": "ping", "arguments": {}})");
}

TEST_F(ToolsTest, ReasoningBeginsWhereThePromptEnds) {
  StartWith("none", "think");
  Says("so</think>\n\nyes");
  const std::string open = R"("chat_template_kwargs":{"tail":"<think>\n"})";
  const Message whole = Whole(open);
  EXPECT_EQ(whole.reasoning, "so");
  EXPECT_EQ(whole.content, "yes");
  ASSERT_TRUE(whole.usage.contains("completion_tokens_details"));
  EXPECT_EQ(whole.usage["completion_tokens_details"]["reasoning_tokens"], 10);  // with the marker
  ExpectSame(Streamed(open), whole);
  EXPECT_EQ(Whole(R"("temperature":0)").content, "so</think>\n\nyes");
}

TEST_F(ToolsTest, AModelWithoutADialectRefusesTools) {
  StartWith("none");
  EXPECT_EQ(Ask(ChatWith(kTools), 400)["error"]["param"], "tools");
  Says("ok");
  EXPECT_EQ(Whole(kTools + R"(,"tool_choice":"none")").content, "ok");
}

}  // namespace
}  // namespace inferd::api
