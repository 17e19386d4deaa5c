// SPDX-License-Identifier: Apache-2.0
// Function tools, output formats and reasoning of the Responses API, over HTTP: every dialect
// streamed and whole, choices, and rounds of tool use.
#include "dialect_fixture.h"

#include <string>
#include <vector>

namespace inferd::api {
namespace {

const Json kTools = Json::parse(R"([
  {"type":"function","name":"get_weather","description":"Weather.","strict":false,
   "parameters":{"type":"object","properties":{
    "city":{"type":"string"},"days":{"type":"integer"},"where":{"type":"object"},
    "list":{"type":"array"}}}},
  {"type":"function","name":"run","parameters":{"type":"object","properties":{
    "code":{"type":"string"},"exact":{"type":"boolean"},
    "maybe":{"anyOf":[{"type":"string"},{"type":"null"}]},"any":{}}}},
  {"type":"function","name":"ping"}])");

class ResponsesToolsTest : public DialectServerTest {
 protected:
  static Json With(const Json& fields) {
    return Over({{"input", "hi"}, {"tools", kTools}}, fields);
  }

  Json Whole(const Json& fields) {
    const Reply reply = Ask("POST", "/v1/responses", With(fields));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }

  /// The last event's response, whose output the deltas make too.
  Json Streamed(Json fields) {
    fields["stream"] = true;
    const Reply reply = Ask("POST", "/v1/responses", With(fields));
    EXPECT_EQ(reply.status, 200) << reply.body;
    const auto events = NamedEvents(reply.body);
    Json last = events.back().data["response"];
    EXPECT_EQ(OutputFromDeltas(events), last["output"]);
    return last;
  }

  static Json WithoutIds(Json response) {
    for (const char* member : {"id", "created_at", "usage"}) {
      response.erase(member);
    }
    for (Json& item : response["output"]) {
      item.erase("id");
      item.erase("call_id");
    }
    return response;
  }
};

TEST_F(ResponsesToolsTest, EveryDialectStreamsWhatItAnswersWhole) {
  for (const text::Sample& sample : text::Samples()) {
    if (!sample.prompt.empty()) {
      continue;  // needs chat_template_kwargs, which this API lacks
    }
    SCOPED_TRACE(sample.calls + ": " + sample.reply);
    StartWith(sample.calls, sample.reasoning);
    Says(sample.reply);
    const Json whole = Whole({});
    EXPECT_EQ(whole["status"], "completed");
    std::string said;
    std::string thought;
    std::vector<Json> calls;
    for (const Json& item : whole["output"]) {
      EXPECT_EQ(item["status"], "completed");
      if (item["type"] == "message") {
        said += item["content"][0]["text"].get<std::string>();
      } else if (item["type"] == "reasoning") {
        thought += item["content"][0]["text"].get<std::string>();
      } else {
        EXPECT_EQ(item["type"], "function_call");
        EXPECT_FALSE(item["call_id"].get<std::string>().empty());
        calls.push_back(item);
      }
    }
    EXPECT_EQ(said, sample.content);
    EXPECT_EQ(thought, sample.thought);
    ASSERT_EQ(calls.size(), sample.expected.size());
    for (std::size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(calls[i]["name"], sample.expected[i].name);
      EXPECT_EQ(Json::parse(calls[i]["arguments"].get<std::string>()),
                Json::parse(sample.expected[i].arguments));
    }
    EXPECT_EQ(WithoutIds(Streamed({})), WithoutIds(whole));
  }
}

TEST_F(ResponsesToolsTest, ChoiceForcesCalls) {
  StartWith("hermes");
  const std::string twice = kHermesCall + "\n" + kHermesCall;
  Says(twice);
  const std::string other = "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>";
  const struct {
    Json fields;
    std::size_t calls;
    bool text, one, two, ping;  // the model may say
  } kCases[] = {
      {{{"tool_choice", "auto"}}, 2, true, true, true, true},
      {{{"parallel_tool_calls", false}}, 1, true, true, true, true},
      {{{"tool_choice", "required"}}, 2, false, true, true, true},
      {{{"tool_choice", "required"}, {"parallel_tool_calls", false}}, 1, false, true, false, true},
      {{{"tool_choice", {{"type", "function"}, {"name", "run"}}}}, 1, false, true, false, false},
      {{{"tool_choice", "none"}}, 0, true, true, true, true},
  };
  for (const auto& expected : kCases) {
    SCOPED_TRACE(expected.fields.dump());
    const Json whole = Whole(expected.fields);
    std::size_t calls = 0;
    for (const Json& item : whole["output"]) {
      calls += item["type"] == "function_call" ? 1 : 0;
    }
    EXPECT_EQ(calls, expected.calls);
    EXPECT_EQ(MaySay("Just text"), expected.text);
    EXPECT_EQ(MaySay(kHermesCall), expected.one);
    EXPECT_EQ(MaySay(twice), expected.two);
    EXPECT_EQ(MaySay(other), expected.ping);
    EXPECT_EQ(WithoutIds(Streamed(expected.fields)), WithoutIds(whole));
  }
}

TEST_F(ResponsesToolsTest, RepeatsTheToolsWithAllTheirMembers) {
  StartWith("hermes");
  Says("ok");
  const Json whole = Whole({{"tool_choice", "none"}, {"parallel_tool_calls", false}});
  EXPECT_EQ(whole["tools"][0], kTools[0]);
  EXPECT_EQ(whole["tools"][2], Json::parse(R"({"type":"function","name":"ping","description":null,
                            "parameters":null,"strict":false})"));
  EXPECT_EQ(whole["tool_choice"], "none");
  EXPECT_EQ(whole["parallel_tool_calls"], false);
}

TEST_F(ResponsesToolsTest, ARoundOfToolUseContinuesAStoredResponse) {
  StartWith(
      "hermes",
      "think",
      {},
      std::string("{% for m in messages %}<{{ m.reasoning }}>") +
          "{{ m.tool_call_id }}{{ m.tool_calls[0].id if m.tool_calls else '' }} {% endfor %}" +
          kTemplate);
  Says("<think>\nhm\n</think>\n\nLooking.\n" + kHermesCall);
  const Json first = Whole({});
  ASSERT_EQ(first["output"].size(), 3U) << first;
  const std::string id = first["output"][2]["call_id"];
  const Json result = {{"type", "function_call_output"}, {"call_id", id}, {"output", "42"}};
  const std::string prompt = "<s><> <hm>" + id + " <>" + id +
                             " <s><|user|>user:hi<|user|>assistant:Looking.[run {\"code\": \"1\"}]"
                             "<|user|>tool:42<|assistant|>";
  Says("Done.");
  const Json second =
      Whole({{"previous_response_id", first["id"]}, {"input", Json::array({result})}});
  EXPECT_EQ(second["output"][0]["content"][0]["text"], "Done.");
  EXPECT_EQ(Prompt(), prompt);
  // The same with the whole conversation sent by the client.
  Json input = {{{"role", "user"}, {"content", "hi"}}};
  for (const Json& item : first["output"]) {
    input.push_back(item);
  }
  input.push_back(result);
  Whole({{"input", input}, {"store", false}});
  EXPECT_EQ(Prompt(), prompt);
}

TEST_F(ResponsesToolsTest, FormatsConstrain) {
  StartWith("hermes");
  Says(R"({"a":1})");
  const Json format = {{"type", "json_schema"},
                       {"name", "numbers"},
                       {"strict", true},
                       {"schema",
                        {{"type", "object"},
                         {"properties", {{"a", {{"type", "integer"}}}}},
                         {"required", {"a"}},
                         {"additionalProperties", false}}}};
  const Json whole = Whole({{"text", {{"format", format}}}});
  EXPECT_EQ(whole["text"]["format"], format);
  EXPECT_TRUE(MaySay(R"({"a":1})"));
  EXPECT_FALSE(MaySay(R"({"a":"x"})"));
  EXPECT_FALSE(MaySay("text"));
  Whole({{"text", {{"format", {{"type", "json_object"}}}}}});
  EXPECT_TRUE(MaySay(R"({"a":"x"})"));
  EXPECT_FALSE(MaySay("text"));
  Whole({{"text", {{"format", {{"type", "text"}}}, {"verbosity", "medium"}}}});
  EXPECT_TRUE(MaySay("text"));
  ExpectRefused("/v1/responses",
                With({{"text", {{"format", format}}}, {"tool_choice", "required"}}),
                "\"tool_choice\"");
}

}  // namespace
}  // namespace inferd::api
