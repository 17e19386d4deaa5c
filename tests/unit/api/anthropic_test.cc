// SPDX-License-Identifier: Apache-2.0
// Anthropic's API: what its handlers make of a request, what they refuse by name, and the exact
// events of a stream.
#include "api/anthropic/endpoints.h"
#include "api/anthropic/message_format.h"
#include "api/anthropic/message_input.h"
#include "protocol_fixture.h"

#include <string>
#include <vector>

namespace inferd::api {
namespace {

class AnthropicTest : public ProtocolTest {
 protected:
  static Json With(const std::string& fields) {
    Json body = {{"model", "test-model"},
                 {"max_tokens", 20},
                 {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    body.update(Json::parse("{" + fields + "}"));
    return body;
  }
  Answer Send(const std::string& fields) { return Call(Messages, With(fields)); }

  nlohmann::ordered_json Read(const std::string& fields) {
    const auto body = nlohmann::ordered_json::parse("{" + fields + "}");
    Fault fault;
    auto messages = ReadAnthropicMessages(Fields(body, &fault));
    EXPECT_TRUE(messages.ok()) << messages.error().message();
    return messages.ok() ? *messages : nlohmann::ordered_json();
  }
};

struct Wrong {
  std::string fields;
  std::string param;
};

TEST_F(AnthropicTest, RefusesMalformedFieldsByName) {
  const std::vector<Wrong> cases = {
      {R"("max_tokens":null)", "max_tokens"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":1.5)", "max_tokens"},
      {R"("max_tokens":"9")", "max_tokens"},
      {R"("model":"other")", "model"},
      {R"("temperature":-1)", "temperature"},
      {R"("top_p":0)", "top_p"},
      {R"("top_k":-1)", "top_k"},
      {R"("stream":"yes")", "stream"},
      {R"("stop_sequences":[""])", "stop_sequences[0]"},
      {R"("stop_sequences":[1])", "stop_sequences[0]"},
      {R"("messages":[])", "messages"},
      {R"("messages":"hi")", "messages"},
      {R"("messages":["hi"])", "messages[0]"},
      {R"("messages":[{"role":"robot","content":"x"}])", "messages[0].role"},
      {R"("messages":[{"role":"user"}])", "messages[0].content"},
      {R"("messages":[{"role":"user","content":5}])", "messages[0].content"},
      {R"("messages":[{"role":"user","content":["x"]}])", "messages[0].content[0]"},
      {R"("messages":[{"role":"user","content":[{"text":"x"}]}])", "messages[0].content[0].type"},
      {R"("messages":[{"role":"user","content":[{"type":"text"}]}])",
       "messages[0].content[0].text"},
      {R"("messages":[{"role":"user","content":[{"type":"image","source":{}}]}])",
       "messages[0].content[0].type"},
      {R"("messages":[{"role":"user","content":[{"type":"tool_result"}]}])",
       "messages[0].content[0].tool_use_id"},
      {R"("messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"image"}]}]}])",
       "messages[0].content[0].content[0].type"},
      {R"("messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":"x"}]}])",
       "messages[0].content[0].input"},
      {R"("system":5)", "system"},
      {R"("system":[{"type":"image"}])", "system[0].type"},
      {R"("thinking":true)", "thinking"},
      {R"("thinking":{"type":"on"})", "thinking.type"},
      {R"("thinking":{"type":"enabled","budget_tokens":5})", "thinking.budget_tokens"},
      {R"("tools":{})", "tools"},
      {R"("tools":[{"name":"f"}])", "tools[0].input_schema"},
      {R"("tools":[{"name":"f","input_schema":{"type":"string"}}])", "tools[0].input_schema.type"},
      {R"("tools":[{"name":"f g","input_schema":{}}])", "tools[0].name"},
      {R"("tools":[{"name":"f","input_schema":{}}])", "tools"},  // this model has no dialect
      {R"("tool_choice":"any")", "tool_choice"},
      {R"("tool_choice":{"type":"any"})", "tool_choice"},
      {R"("tool_choice":{"type":"some"})", "tool_choice.type"},
      {R"("tool_choice":{"type":"tool"})", "tool_choice.name"},
      {R"("tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool","name":"g"})",
       "tool_choice.name"},
      {R"("tool_choice":{"type":"auto","disable_parallel_tool_use":1})",
       "tool_choice.disable_parallel_tool_use"},
      {R"("output_config":{"format":{"type":"json_schema"}})", "output_config.format.schema"},
      {R"("output_config":{"format":{"type":"xml"}})", "output_config.format.type"},
      {R"("output_format":5)", "output_format"},
      {R"("output_config":{"effort":5})", "output_config.effort"},
      {R"("tools":[{"input_schema":{}}])", "tools[0].name"},
      {R"("tools":[{"type":"web_search_20250305","name":"web_search"}])", "tools[0].type"},
      {R"("mcp_servers":[{"url":"x"}])", "mcp_servers"},
  };
  for (const Wrong& wrong : cases) {
    const Answer answer = Send(wrong.fields);
    EXPECT_EQ(answer.status(), wrong.param == "model" ? 404 : 400) << wrong.fields;
    EXPECT_EQ(answer.fault.param, wrong.param) << wrong.fields << ": " << answer.message();
    EXPECT_NE(answer.message().find(wrong.param == "model" ? "other" : wrong.param),
              std::string::npos)
        << answer.message();
  }
}

TEST_F(AnthropicTest, MapsParameters) {
  const leader::GenerateRequest request = Made(Send(
      R"("temperature":0.25,"top_p":0.5,"top_k":7,"metadata":{"user_id":"u"},"max_tokens":9)"));
  EXPECT_EQ(request.sampling.temperature, 0.25);
  EXPECT_EQ(request.sampling.top_p, 0.5);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_LT(Made(Send(R"("max_tokens":100000)")).max_tokens, 1000)
      << "more than the context holds is cut to it, not refused";
}

TEST_F(AnthropicTest, RendersSystemAndBlocks) {
  EXPECT_EQ(Prompt(Send(R"("system":"be brief")")),
            "<s><|user|>system:be brief<|user|>user:hi<|assistant|>");
  EXPECT_EQ(Prompt(Send(R"("system":[{"type":"text","text":"a"},{"type":"text","text":"b",
                           "cache_control":{"type":"ephemeral"}}],
                           "messages":[{"role":"user","content":[{"type":"text","text":"x"},
                                                                 {"type":"text","text":"y"}]},
                                       {"role":"user","content":"z"}])")),
            "<s><|user|>system:a\nb<|user|>user:x\ny\nz<|assistant|>");
}

TEST_F(AnthropicTest, ContinuesAnAssistantMessage) {
  EXPECT_EQ(Prompt(Send(R"("messages":[{"role":"user","content":"hi"},
                                       {"role":"assistant","content":"The answer is"}])")),
            "<s><|user|>user:hi<|user|>assistant:The answer is");
}

TEST_F(AnthropicTest, TurnsToolBlocksIntoCallsAndToolMessages) {
  const auto messages = Read(R"("messages":[
      {"role":"user","content":"weather?"},
      {"role":"assistant","content":[
          {"type":"thinking","thinking":"hm","signature":"s"},
          {"type":"redacted_thinking","data":"xx"},
          {"type":"text","text":"Looking."},
          {"type":"tool_use","id":"t1","name":"weather","input":{"city":"Bern"}}]},
      {"role":"user","content":[
          {"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"sun"}]},
          {"type":"text","text":"and?"}]}])");
  const auto expected = nlohmann::ordered_json::parse(R"([
      {"role":"user","content":"weather?"},
      {"role":"assistant","content":"Looking.","reasoning":"hm","reasoning_content":"hm",
       "tool_calls":[{"id":"t1","type":"function",
                      "function":{"name":"weather","arguments":{"city":"Bern"}}}]},
      {"role":"tool","tool_call_id":"t1","content":"sun","name":"weather"},
      {"role":"user","content":"and?"}])");
  EXPECT_EQ(messages.dump(1), expected.dump(1));
}

TEST_F(AnthropicTest, CountsTokensAsThePromptHasThem) {
  Json body = With("");
  body.erase("max_tokens");
  const Answer counted = Call(CountMessageTokens, body);
  EXPECT_EQ(Body(counted)["input_tokens"], Made(Send("")).prompt.size());
}

TEST_F(AnthropicTest, WritesErrorsInItsShape) {
  const auto type = [](Code code) {
    const Json body = Json::parse(AnthropicErrorBody(Error(code, "why"), {}));
    EXPECT_EQ(body["type"], "error");
    return body["error"]["type"].get<std::string>() + ": " +
           body["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(type(Code::kInvalidArgument), "invalid_request_error: why");
  EXPECT_EQ(type(Code::kNotFound), "not_found_error: why");
  EXPECT_EQ(type(Code::kResourceExhausted), "rate_limit_error: why");
  EXPECT_EQ(type(Code::kUnavailable), "overloaded_error: why");
  EXPECT_EQ(type(Code::kUnauthenticated), "authentication_error: why");
  EXPECT_TRUE(type(Code::kInternal).starts_with("api_error: The server could not"));
}

const std::vector<std::string> kThinkSayAndCallEvents = {"message_start",
                                                         "ping",
                                                         "content_block_start",
                                                         "content_block_delta",
                                                         "content_block_delta",
                                                         "content_block_stop",
                                                         "content_block_start",
                                                         "content_block_delta",
                                                         "content_block_delta",
                                                         "content_block_stop",
                                                         "content_block_start",
                                                         "content_block_delta",
                                                         "content_block_delta",
                                                         "content_block_stop",
                                                         "content_block_start",
                                                         "content_block_stop",
                                                         "message_delta",
                                                         "message_stop"};

TEST(MessageFormat, StreamsBlocksInOrder) {
  MessageFormat format("msg_1", "m", 100);
  const auto events = NamedEvents(StreamOf(&format, ThinkSayAndCallTwice()));
  ASSERT_EQ(Names(events), kThinkSayAndCallEvents);
  EXPECT_EQ(events[0].data["message"], Json::parse(R"({"id":"msg_1","type":"message",
      "role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,
      "usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,
               "output_tokens":0}})"));
  EXPECT_EQ(events[2].data["content_block"],
            Json::parse(R"({"type":"thinking","thinking":"","signature":""})"));
  EXPECT_EQ(events[4].data["delta"],
            Json::parse(R"({"type":"thinking_delta","thinking":" see."})"));
  EXPECT_EQ(events[6].data["content_block"], Json::parse(R"({"type":"text","text":""})"));
  EXPECT_EQ(events[8].data["delta"], Json::parse(R"({"type":"text_delta","text":"ing."})"));
  EXPECT_EQ(events[10].data["content_block"]["name"], "weather");
  EXPECT_EQ(events[10].data["content_block"]["input"], Json::object());
  EXPECT_EQ(events[10].data["content_block"]["id"], "call_1");
  EXPECT_EQ(events[12].data["delta"],
            Json::parse(R"({"type":"input_json_delta","partial_json":"\"Bern\"}"})"));
  EXPECT_EQ(events[14].data["content_block"]["name"], "clock");
  EXPECT_EQ(events[16].data["delta"],
            Json::parse(R"({"stop_reason":"tool_use","stop_sequence":null})"));
  EXPECT_EQ(events[16].data["usage"]["output_tokens"], 7);
  int index = -1;
  for (const NamedEvent& event : events) {
    if (event.name == "content_block_start") {
      ++index;
    }
    if (event.data.contains("index")) {
      EXPECT_EQ(event.data["index"], index);
    }
  }
}

void EraseIds(Json* message) {
  message->erase("id");
  for (Json& block : (*message)["content"]) {
    block.erase("id");
  }
}

TEST(MessageFormat, WholeAnswerEqualsTheStream) {
  const auto pieces = ThinkSayAndCallTwice();
  MessageFormat streamed("msg_1", "m", 100);
  MessageFormat whole("msg_1", "m", 100);
  Json from_stream = MessageFromEvents(NamedEvents(StreamOf(&streamed, pieces)));
  Json full = FullOf(&whole, AllInOne(pieces));
  EXPECT_EQ(full["content"][2]["input"], Json::parse(R"({"city":"Bern"})"));
  EraseIds(&from_stream);
  EraseIds(&full);
  EXPECT_EQ(full, from_stream);
}

TEST(MessageFormat, PassesArgumentsOnThatAreNoObject) {
  HandMadePiece piece;
  piece.deltas = {{text::OutputDelta::Kind::kToolCall, 0, "f"},
                  {text::OutputDelta::Kind::kToolArguments, 0, R"({"a":)"}};
  piece.finish = leader::FinishReason::kLength;
  piece.has_tool_calls = true;
  MessageFormat format("msg_1", "m", 7);
  const Json full = FullOf(&format, piece);
  EXPECT_EQ(full["content"][0]["input"], Json::parse(R"({"INVALID_JSON":"{\"a\":"})"));
  EXPECT_EQ(full["stop_reason"], "max_tokens");
}

TEST(MessageFormat, TellsAFullContextFromSpentTokens) {
  HandMadePiece piece;
  piece.finish = leader::FinishReason::kLength;
  MessageFormat allowed_more("msg_1", "m", 8);
  EXPECT_EQ(FullOf(&allowed_more, piece)["stop_reason"], "model_context_window_exceeded");
  piece.finish = leader::FinishReason::kStop;
  piece.stop_reason = std::string("END");
  MessageFormat stopped("msg_1", "m", 8);
  const Json full = FullOf(&stopped, piece);
  EXPECT_EQ(full["stop_reason"], "stop_sequence");
  EXPECT_EQ(full["stop_sequence"], "END");
  EXPECT_EQ(full["content"], Json::array());
}

class AnthropicServerTest : public ProtocolServerTest {
 protected:
  Reply Post(const Json& body) {
    return Ask("POST", "/v1/messages", body, "x-api-key: k\r\nanthropic-version: 2023-06-01\r\n");
  }
  static Json Hello() {
    return {{"model", "test-model"},
            {"max_tokens", 20},
            {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  }
};

TEST_F(AnthropicServerTest, StreamEqualsTheWholeAnswer) {
  Start();
  for (const Json& more : {Json::parse(R"({})"),
                           Json::parse(R"({"stop_sequences":["lo"]})"),
                           Json::parse(R"({"max_tokens":3})")}) {
    Json body = Hello();
    body.update(more);
    const Reply whole = Post(body);
    ASSERT_EQ(whole.status, 200) << whole.body;
    body["stream"] = true;
    const Reply stream = Post(body);
    ASSERT_EQ(stream.status, 200) << stream.body;
    EXPECT_TRUE(stream.Has("content-type: text/event-stream"));
    const auto events = NamedEvents(stream.body);
    ASSERT_GE(events.size(), 7U);
    EXPECT_EQ(events[0].name, "message_start");
    EXPECT_EQ(events[1].name, "ping");
    EXPECT_EQ(events[2].name, "content_block_start");
    EXPECT_EQ(Names({events.end() - 3, events.end()}),
              (std::vector<std::string>{"content_block_stop", "message_delta", "message_stop"}));
    Json full = Json::parse(whole.body);
    Json joined = MessageFromEvents(events);
    EraseIds(&full);
    EraseIds(&joined);
    EXPECT_EQ(full, joined);
  }
}

TEST_F(AnthropicServerTest, EndsAFailedStreamWithAnErrorEvent) {
  Start();
  service_.FailAfter(2, Error(Code::kUnavailable, "a worker was lost"));
  service_.HoldFailure(true);
  Json body = Hello();
  body["stream"] = true;
  HttpClient client(port_);
  Send(&client, "POST", "/v1/messages", body);
  ASSERT_TRUE(client.ReadUntil("content_block_delta"));
  service_.HoldFailure(false);
  const auto events = NamedEvents(client.Read().body);
  EXPECT_EQ(events.back().name, "error");
  EXPECT_EQ(events.back().data["error"],
            Json::parse(R"({"type":"overloaded_error","message":"a worker was lost"})"));
}

TEST_F(AnthropicServerTest, AnswersErrorsInItsShape) {
  Start();
  const Reply reply = Post({{"model", "test-model"}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Json::parse(reply.body)["type"], "error");
  EXPECT_EQ(Json::parse(reply.body)["error"]["message"], "max_tokens is missing");
  service_.SetPhase(leader::Phase::kLoading);
  const Reply loading = Post(Hello());
  EXPECT_EQ(loading.status, 503);
  EXPECT_EQ(Json::parse(loading.body)["error"]["type"], "overloaded_error");
}

}  // namespace
}  // namespace inferd::api
