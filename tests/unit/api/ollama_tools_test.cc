// SPDX-License-Identifier: Apache-2.0
// Tools, thinking and output formats of Ollama's API, over HTTP: every dialect streamed and whole,
// rounds of tool use, and what /api/show tells of the model.
#include "dialect_fixture.h"

#include <sstream>
#include <string>

namespace inferd::api {
namespace {

const Json kTools = Json::parse(R"([
  {"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{
    "city":{"type":"string"},"days":{"type":"integer"},"where":{"type":"object"},
    "list":{"type":"array"}}}}},
  {"function":{"name":"run","parameters":{"type":"object","properties":{
    "code":{"type":"string"},"exact":{"type":"boolean"},
    "maybe":{"anyOf":[{"type":"string"},{"type":"null"}]},"any":{}}}}},
  {"type":"function","function":{"name":"ping"}}])");

class OllamaToolsTest : public DialectServerTest {
 protected:
  static Json With(const Json& fields) {
    return Over({{"model", "test-model"},
                 {"tools", kTools},
                 {"messages", {{{"role", "user"}, {"content", "hi"}}}}},
                fields);
  }

  Json Whole(Json fields) {
    fields["stream"] = false;
    const Reply reply = Ask("POST", "/api/chat", With(fields));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }

  /// The last line, with the message that all lines make.
  Json Streamed(const Json& fields) {
    const Reply reply = Ask("POST", "/api/chat", With(fields));
    EXPECT_EQ(reply.status, 200) << reply.body;
    Json message = {{"role", "assistant"}, {"content", ""}};
    Json last;
    std::istringstream lines(reply.body);
    for (std::string line; std::getline(lines, line);) {
      last = Json::parse(line);
      const Json& said = last["message"];
      for (const char* key : {"content", "thinking"}) {
        if (said.contains(key)) {
          message[key] = message.value(key, "") + said[key].get<std::string>();
        }
      }
      for (const Json& call : said.value("tool_calls", Json::array())) {
        message["tool_calls"].push_back(call);
      }
    }
    last["message"] = message;
    return last;
  }

  static Json WithoutIds(Json reply) {
    Json message = reply["message"];
    if (message.contains("tool_calls")) {
      for (Json& call : message["tool_calls"]) {
        call.erase("id");
      }
    }
    message["done_reason"] = reply["done_reason"];
    message["eval_count"] = reply["eval_count"];
    return message;
  }
};

TEST_F(OllamaToolsTest, EveryDialectStreamsWhatItAnswersWhole) {
  for (const text::Sample& sample : text::Samples()) {
    if (!sample.prompt.empty()) {
      continue;  // needs chat_template_kwargs, which this API lacks
    }
    SCOPED_TRACE(sample.calls + ": " + sample.reply);
    StartWith(sample.calls, sample.reasoning);
    Says(sample.reply);
    const Json whole = Whole({});
    const Json& message = whole["message"];
    EXPECT_EQ(whole["done_reason"], "stop");
    EXPECT_EQ(message["content"], sample.content);
    EXPECT_EQ(message.value("thinking", ""), sample.thought);
    const Json calls = message.value("tool_calls", Json::array());
    ASSERT_EQ(calls.size(), sample.expected.size());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      EXPECT_FALSE(calls[i]["id"].get<std::string>().empty());
      EXPECT_EQ(calls[i]["function"]["index"], i);
      EXPECT_EQ(calls[i]["function"]["name"], sample.expected[i].name);
      EXPECT_EQ(calls[i]["function"]["arguments"], Json::parse(sample.expected[i].arguments));
    }
    EXPECT_EQ(WithoutIds(Streamed({})), WithoutIds(whole));
  }
}

TEST_F(OllamaToolsTest, ResultsFindTheirCallsWithoutIds) {
  StartWith("hermes",
            "none",
            {},
            "{% for m in messages %}{{ m.role }}:{{ m.content }}"
            "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }} "
            "{{ c.function.arguments | tojson }}]{% endfor %}"
            "{% if m.role == 'tool' %}({{ m.tool_call_id }} {{ m.name }}){% endif %};{% endfor %}");
  Says("ok");
  const auto call = [](const std::string& name, const Json& arguments) {
    return Json{{"function", {{"name", name}, {"arguments", arguments}}}};
  };
  const auto ask = [&](const Json& first_result, const Json& second_result) {
    Whole({{"messages",
            {{{"role", "user"}, {"content", "hi"}},
             {{"role", "assistant"},
              {"tool_calls", {call("run", {{"code", "1"}}), call("ping", Json::object())}}},
             first_result,
             second_result}}});
    return Prompt();
  };
  const std::string calls =
      "<s>user:hi;assistant:[call00000 run {\"code\": \"1\"}][call00001 ping {}];";
  const std::string run = "tool:42(call00000 run);";
  const std::string ping = "tool:pong(call00001 ping);";
  EXPECT_EQ(ask({{"role", "tool"}, {"content", "42"}}, {{"role", "tool"}, {"content", "pong"}}),
            calls + run + ping);
  EXPECT_EQ(ask({{"role", "tool"}, {"content", "pong"}, {"tool_name", "ping"}},
                {{"role", "tool"}, {"content", "42"}, {"tool_name", "run"}}),
            calls + ping + run);
  EXPECT_EQ(ask({{"role", "tool"}, {"content", "pong"}, {"tool_call_id", "call00001"}},
                {{"role", "tool"}, {"content", "42"}}),
            calls + ping + run);
}

TEST_F(OllamaToolsTest, ThinkingReachesTheTemplate) {
  StartWith("hermes",
            "think",
            {},
            "{% for m in messages %}({{ m.reasoning_content }}){% endfor %}"
            "{{ enable_thinking }} {{ reasoning_effort }}");
  Says("<think>\nhm\n</think>\n\nyes");
  const Json messages = {{{"role", "user"}, {"content", "hi"}},
                         {{"role", "assistant"}, {"content", "a"}, {"thinking", "so"}},
                         {{"role", "user"}, {"content", "b"}}};
  const Json whole = Whole({{"think", true}, {"messages", messages}});
  EXPECT_EQ(whole["message"]["thinking"], "hm");
  EXPECT_EQ(whole["message"]["content"], "yes");
  EXPECT_EQ(Prompt(), "<s>()(so)()True ");
  Whole({{"think", "high"}, {"messages", messages}});
  EXPECT_EQ(Prompt(), "<s>()(so)()True high");
  const Reply generated =
      Ask("POST", "/api/generate", {{"model", "test-model"}, {"prompt", "hi"}, {"stream", false}});
  EXPECT_EQ(Json::parse(generated.body)["thinking"], "hm");
  EXPECT_EQ(Json::parse(generated.body)["response"], "yes");
}

TEST_F(OllamaToolsTest, FormatsConstrainChatAndGenerate) {
  StartWith("hermes");
  Says(R"({"a":1})");
  const Json schema = {{"type", "object"},
                       {"properties", {{"a", {{"type", "integer"}}}}},
                       {"required", {"a"}},
                       {"additionalProperties", false}};
  for (const bool raw : {false, true}) {
    for (const std::string path : {"/api/chat", "/api/generate"}) {
      Json body = {{"model", "test-model"}, {"stream", false}};
      if (path == "/api/chat") {
        body["messages"] = {{{"role", "user"}, {"content", "hi"}}};
      } else {
        body["prompt"] = "hi";
        body["raw"] = raw;
      }
      body["format"] = schema;
      EXPECT_EQ(Ask("POST", path, body).status, 200);
      EXPECT_TRUE(MaySay(R"({"a":1})"));
      EXPECT_FALSE(MaySay(R"({"a":"x"})"));
      body["format"] = "json";
      EXPECT_EQ(Ask("POST", path, body).status, 200);
      EXPECT_TRUE(MaySay(R"({"a":"x"})"));
      EXPECT_FALSE(MaySay("text"));
    }
  }
}

TEST_F(OllamaToolsTest, ShowTellsWhatTheModelCanDo) {
  const auto capabilities = [&] {
    return Json::parse(Ask("POST", "/api/show", {{"model", "test-model"}}).body)["capabilities"];
  };
  StartWith("none");
  EXPECT_EQ(capabilities(), Json({"completion"}));
  StartWith("hermes", "think");
  EXPECT_EQ(capabilities(), Json({"completion", "tools", "thinking"}));
}

}  // namespace
}  // namespace inferd::api
