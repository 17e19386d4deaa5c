// SPDX-License-Identifier: Apache-2.0
// The Responses API: what its handlers make of a request, what they refuse by name, the exact
// events of a stream, and the store.
#include "api/responses/endpoints.h"
#include "api/responses/response_format.h"
#include "api/responses/response_input.h"
#include "api/responses/response_store.h"
#include "protocol_fixture.h"

#include <string>
#include <vector>

namespace inferd::api {
namespace {

using EventNames = std::vector<std::string>;

class ResponsesTest : public ProtocolTest {
 protected:
  Answer Create(const std::string& fields) {
    Json body = {{"model", "test-model"}, {"input", "hi"}};
    body.update(Json::parse("{" + fields + "}"));
    return Call(CreateResponse, body);
  }
  static nlohmann::ordered_json Items(const std::string& input) {
    const auto body = nlohmann::ordered_json::parse(R"({"input":)" + input + "}");
    Fault fault;
    auto items = ReadInputItems(Fields(body, &fault));
    EXPECT_TRUE(items.ok()) << items.error().message();
    return items.ok() ? *items : nlohmann::ordered_json::array();
  }
};

struct Wrong {
  std::string fields;
  std::string param;
  int status = 400;
};

TEST_F(ResponsesTest, RefusesMalformedFieldsByName) {
  const std::vector<Wrong> cases = {
      {R"("model":"other")", "model", 404},
      {R"("input":null)", "input"},
      {R"("input":5)", "input"},
      {R"("input":[])", "input"},
      {R"("input":["x"])", "input[0]"},
      {R"("input":[{"role":"robot","content":"x"}])", "input[0].role"},
      {R"("input":[{"role":"user"}])", "input[0].content"},
      {R"("input":[{"role":"user","content":7}])", "input[0].content"},
      {R"("input":[{"role":"user","content":["x"]}])", "input[0].content[0]"},
      {R"("input":[{"role":"user","content":[{"type":"input_text"}]}])",
       "input[0].content[0].text"},
      {R"("input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}])",
       "input[0].content[0].type"},
      {R"("input":[{"type":"item_reference","id":"x"}])", "input[0].type"},
      {R"("input":[{"type":"function_call","name":"f","arguments":"{}"}])", "input[0].call_id"},
      {R"("input":[{"type":"function_call","call_id":"c","name":"f","arguments":{}}])",
       "input[0].arguments"},
      {R"("input":[{"type":"function_call_output","call_id":"c"}])", "input[0].output"},
      {R"("max_output_tokens":0)", "max_output_tokens"},
      {R"("max_output_tokens":"1")", "max_output_tokens"},
      {R"("temperature":-1)", "temperature"},
      {R"("top_p":2)", "top_p"},
      {R"("stream":1)", "stream"},
      {R"("store":"no")", "store"},
      {R"("instructions":1)", "instructions"},
      {R"("metadata":[])", "metadata"},
      {R"("metadata":{"a":1})", "metadata.a"},
      {R"("reasoning":true)", "reasoning"},
      {R"("reasoning":{"effort":1})", "reasoning.effort"},
      {R"("text":"x")", "text"},
      {R"("text":{"format":5})", "text.format"},
      {R"("text":{"format":{"type":"xml"}})", "text.format.type"},
      {R"("text":{"format":{"type":"json_schema","name":"n"}})", "text.format.schema"},
      {R"("text":{"verbosity":"low"})", "text.verbosity"},
      {R"("tools":5)", "tools"},
      {R"("tools":[{"type":"web_search"}])", "tools[0].type"},
      {R"("tools":[{"type":"function"}])", "tools[0].name"},
      {R"("tools":[{"type":"function","name":"f","parameters":[]}])", "tools[0].parameters"},
      {R"("tools":[{"type":"function","name":"f","strict":"x"}])", "tools[0].strict"},
      {R"("tools":[{"type":"function","name":"f"}])", "tools"},  // this model has no dialect
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":"maybe")", "tool_choice"},
      {R"("tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"file_search"})",
       "tool_choice.type"},
      {R"("tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"g"})",
       "tool_choice.name"},
      {R"("parallel_tool_calls":1)", "parallel_tool_calls"},
      {R"("background":true)", "background"},
      {R"("conversation":"c")", "conversation"},
      {R"("prompt":{"id":"p"})", "prompt"},
      {R"("truncation":"auto")", "truncation"},
      {R"("top_logprobs":2)", "top_logprobs"},
      {R"("include":["message.output_text.logprobs"])", "include[0]"},
      {R"("previous_response_id":"resp_none")", "previous_response_id", 404},
  };
  for (const Wrong& wrong : cases) {
    const Answer answer = Create(wrong.fields);
    EXPECT_EQ(answer.status(), wrong.status) << wrong.fields;
    EXPECT_EQ(answer.fault.param, wrong.param) << wrong.fields << ": " << answer.message();
  }
}

TEST_F(ResponsesTest, MapsParametersAndRendersInput) {
  EXPECT_EQ(Prompt(Create(R"("instructions":"be brief")")),
            "<s><|user|>system:be brief<|user|>user:hi<|assistant|>");
  EXPECT_EQ(Prompt(Create(R"("input":[{"role":"developer","content":"d"},
      {"type":"message","role":"user","content":[{"type":"input_text","text":"a"},
                                                 {"type":"input_text","text":"b"}]}])")),
            "<s><|user|>system:d<|user|>user:a\nb<|assistant|>");
  const leader::GenerateRequest request =
      Made(Create(R"("temperature":0.5,"top_p":0.25,"max_output_tokens":9,
                     "include":["reasoning.encrypted_content"],"truncation":"disabled",
                     "background":false,"text":{"format":{"type":"text"}})"));
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.25);
  EXPECT_EQ(request.max_tokens, 9);
}

TEST_F(ResponsesTest, TurnsItemsIntoMessages) {
  const auto messages = MessagesOf(Items(R"([
      {"role":"user","content":"weather?"},
      {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"Looking."}]},
      {"type":"function_call","call_id":"c1","name":"weather","arguments":"{\"city\":\"Bern\"}"},
      {"type":"function_call_output","call_id":"c1","output":"sun"},
      {"role":"user","content":"and?"}])"));
  const auto expected = nlohmann::ordered_json::parse(R"([
      {"role":"user","content":"weather?"},
      {"role":"assistant","content":"Looking.","reasoning":"hm","reasoning_content":"hm",
       "tool_calls":[{"id":"c1","type":"function",
                      "function":{"name":"weather","arguments":{"city":"Bern"}}}]},
      {"role":"tool","tool_call_id":"c1","content":"sun","name":"weather"},
      {"role":"user","content":"and?"}])");
  EXPECT_EQ(messages.dump(1), expected.dump(1));
}

// ---- the format

ResponseRequest SomeRequest() {
  return {.id = "resp_1",
          .created_s = 5,
          .echo = R"("model":"m")",
          .input_items = R"([{"type":"message","id":"msg_in"}])"};
}

TEST(ResponseFormat, StreamsItemsInOrder) {
  ResponseStore store(10, 1 << 20);
  ResponseFormat format(SomeRequest(), &store);
  const auto events = NamedEvents(StreamOf(&format, ThinkSayAndCallTwice()));
  const EventNames text_head = {"response.output_item.added", "response.content_part.added"};
  const EventNames text_tail = {"response.content_part.done", "response.output_item.done"};
  EventNames expected = {"response.created", "response.in_progress"};
  const auto add = [&](const EventNames& more) {
    expected.insert(expected.end(), more.begin(), more.end());
  };
  for (const std::string kind : {"response.reasoning_text.", "response.output_text."}) {
    add(text_head);
    add({kind + "delta", kind + "delta", kind + "done"});
    add(text_tail);
  }
  const std::string call = "response.function_call_arguments.";
  add({"response.output_item.added",
       call + "delta",
       call + "delta",
       call + "done",
       "response.output_item.done"});
  add({"response.output_item.added", call + "done", "response.output_item.done"});
  add({"response.completed"});
  ASSERT_EQ(Names(events), expected);
  std::int64_t sequence = 0;
  for (const NamedEvent& event : events) {
    EXPECT_EQ(event.data["sequence_number"], sequence++);
  }
  EXPECT_EQ(events[0].data["response"]["status"], "in_progress");
  EXPECT_EQ(events[0].data["response"]["output"], Json::array());
  EXPECT_TRUE(events[0].data["response"]["usage"].is_null());
  const Json& response = events.back().data["response"];
  EXPECT_EQ(response["status"], "completed");
  ASSERT_EQ(response["output"].size(), 4U);
  EXPECT_EQ(response["output"][0]["type"], "reasoning");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "Let me see.");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "Looking.");
  EXPECT_EQ(response["output"][2]["arguments"], R"({"city":"Bern"})");
  EXPECT_EQ(response["output"][3]["name"], "clock");
  EXPECT_EQ(response["usage"], Json::parse(R"({"input_tokens":10,
      "input_tokens_details":{"cached_tokens":4},"output_tokens":7,
      "output_tokens_details":{"reasoning_tokens":3},"total_tokens":17})"));
  EXPECT_EQ(Json::parse(store.Get("resp_1")->body), response);
}

Json WithoutIds(Json output) {
  for (Json& item : output) {
    item.erase("id");
    item.erase("call_id");
  }
  return output;
}

TEST(ResponseFormat, WholeAnswerEqualsTheStream) {
  const auto pieces = ThinkSayAndCallTwice();
  ResponseFormat streamed(SomeRequest(), nullptr);
  ResponseFormat whole(SomeRequest(), nullptr);
  const auto events = NamedEvents(StreamOf(&streamed, pieces));
  Json full = FullOf(&whole, AllInOne(pieces));
  Json last = events.back().data["response"];
  EXPECT_EQ(OutputFromDeltas(events), last["output"]);
  full["output"] = WithoutIds(full["output"]);
  last["output"] = WithoutIds(last["output"]);
  EXPECT_EQ(full, last);
}

TEST(ResponseFormat, SaysHowItEnded) {
  HandMadePiece piece;
  piece.deltas = {{text::OutputDelta::Kind::kContent, -1, "He"}};
  piece.finish = leader::FinishReason::kLength;
  ResponseStore store(10, 1 << 20);
  ResponseFormat format(SomeRequest(), &store);
  const auto events = NamedEvents(StreamOf(&format, {piece}));
  EXPECT_EQ(events.back().name, "response.incomplete");
  const Json& response = events.back().data["response"];
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
}

TEST(ResponseFormat, FailsAndIsLeft) {
  ResponseStore store(10, 1 << 20);
  HandMadePiece piece;
  piece.deltas = {{text::OutputDelta::Kind::kContent, -1, "He"}};
  {
    ResponseFormat format(SomeRequest(), &store);
    std::string out;
    format.AppendStart({}, &out);
    format.AppendPiece(piece.View(), &out);
    EXPECT_TRUE(store.Get("resp_1")->running);
    format.AppendFailure(Error(Code::kUnavailable, "lost"), &out);
    const auto events = NamedEvents(out);
    EXPECT_EQ(events.back().name, "response.failed");
    EXPECT_EQ(events.back().data["response"]["error"]["message"], "lost");
    EXPECT_EQ(events.back().data["response"]["output"][0]["content"][0]["text"], "He");
  }
  EXPECT_EQ(Json::parse(store.Get("resp_1")->body)["status"], "failed");
  {
    ResponseFormat format(SomeRequest(), &store);
    std::string out;
    format.AppendStart({}, &out);
    format.AppendPiece(piece.View(), &out);
  }
  EXPECT_FALSE(store.Get("resp_1")->running);
  EXPECT_EQ(Json::parse(store.Get("resp_1")->body)["status"], "cancelled");
}

// ---- the store

TEST(ResponseStore, ForgetsTheLeastRecentlyUsed) {
  ResponseStore store(2, 1 << 20);
  store.Put("a", {"1", "[]"});
  store.Put("b", {"2", "[]"});
  EXPECT_NE(store.Get("a"), nullptr);
  store.Put("c", {"3", "[]"});
  EXPECT_EQ(store.Get("b"), nullptr);
  EXPECT_NE(store.Get("a"), nullptr);
  EXPECT_NE(store.Get("c"), nullptr);
  EXPECT_EQ(store.count(), 2U);
}

TEST(ResponseStore, KeepsWithinItsBytes) {
  const std::size_t one = StoredResponse{std::string(1000, 'x'), ""}.bytes();
  ResponseStore store(100, 3 * one);
  for (const char* id : {"a", "b", "c", "d"}) {
    store.Put(id, {std::string(1000, 'x'), ""});
    EXPECT_LE(store.bytes(), 3 * one);
  }
  EXPECT_EQ(store.Get("a"), nullptr);
  EXPECT_EQ(store.count(), 3U);
  store.Put("big", {std::string(4 * one, 'x'), ""});
  EXPECT_EQ(store.Get("big"), nullptr);
  EXPECT_EQ(store.count(), 3U) << "what cannot be kept drives nothing out";
  store.Update("d", std::string(1500, 'y'), false);
  EXPECT_LE(store.bytes(), 3 * one);
  EXPECT_EQ(store.Get("d")->body.size(), 1500U);
  EXPECT_TRUE(store.Erase("d"));
  EXPECT_FALSE(store.Erase("d"));
  store.Update("d", "z", false);
  EXPECT_EQ(store.Get("d"), nullptr) << "a deleted one stays deleted";
}

// ---- over HTTP

class ResponsesServerTest : public ProtocolServerTest {
 protected:
  /// The prompt that the engine saw last.
  std::string PromptText() { return ByteTokenizer()->Decode(service_.last()->prompt, false); }
};

TEST_F(ResponsesServerTest, StreamEqualsTheWholeAnswer) {
  Start();
  for (const Json& more :
       {Json::parse(R"({"model":"test-model"})"), Json::parse(R"({"max_output_tokens":3})")}) {
    Json body = {{"input", "hi"}};
    body.update(more);
    const Reply whole = Ask("POST", "/v1/responses", body);
    ASSERT_EQ(whole.status, 200) << whole.body;
    body["stream"] = true;
    const auto events = NamedEvents(Ask("POST", "/v1/responses", body).body);
    ASSERT_GE(events.size(), 8U);
    Json full = Json::parse(whole.body);
    Json last = events.back().data["response"];
    EXPECT_EQ(OutputFromDeltas(events), last["output"]);
    for (Json* response : {&full, &last}) {
      response->erase("id");
      response->erase("created_at");
      (*response)["output"] = WithoutIds((*response)["output"]);
    }
    EXPECT_EQ(full, last);
  }
}

TEST_F(ResponsesServerTest, KeepsContinuesAndDeletes) {
  Start();
  const Json first = Json::parse(Ask("POST", "/v1/responses", {{"input", "one"}}).body);
  const std::string path = "/v1/responses/" + first["id"].get<std::string>();
  EXPECT_EQ(Json::parse(Ask("GET", path).body), first);
  const Json second = Json::parse(
      Ask("POST", "/v1/responses", {{"input", "two"}, {"previous_response_id", first["id"]}}).body);
  EXPECT_EQ(PromptText(),
            "<s><|user|>user:one<|user|>assistant:Hello<|user|>user:two<|assistant|>");
  const std::string second_path = "/v1/responses/" + second["id"].get<std::string>();
  Json items = Json::parse(Ask("GET", second_path + "/input_items?order=asc").body);
  ASSERT_EQ(items["data"].size(), 3U);
  EXPECT_EQ(items["data"][0]["content"][0]["text"], "one");
  EXPECT_EQ(items["data"][1]["content"][0]["text"], "Hello");
  EXPECT_FALSE(items["has_more"]);
  items = Json::parse(Ask("GET", second_path + "/input_items?limit=1").body);
  EXPECT_EQ(items["data"][0]["content"][0]["text"], "two");
  EXPECT_TRUE(items["has_more"]);
  items = Json::parse(
      Ask("GET", second_path + "/input_items?limit=1&after=" + items["last_id"].get<std::string>())
          .body);
  EXPECT_EQ(items["data"][0]["content"][0]["text"], "Hello");
  for (const std::string bad : {"limit=0", "limit=101", "limit=x", "order=up", "after=none"}) {
    EXPECT_EQ(Ask("GET", second_path + "/input_items?" + bad).status, 400) << bad;
  }
  EXPECT_EQ(Ask("POST", path + "/cancel").status, 400) << "it is complete";
  EXPECT_EQ(Json::parse(Ask("DELETE", path).body)["deleted"], true);
  for (const auto& [method, at] :
       std::vector<std::pair<std::string, std::string>>{{"GET", path},
                                                        {"DELETE", path},
                                                        {"POST", path + "/cancel"},
                                                        {"GET", path + "/input_items"}}) {
    const Reply gone = Ask(method, at);
    EXPECT_EQ(gone.status, 404) << method << at;
    EXPECT_EQ(Json::parse(gone.body)["error"]["code"], "response_not_found");
  }
  EXPECT_EQ(Ask("GET", second_path).status, 200) << "a continuation stands alone";
  const Json unkept =
      Json::parse(Ask("POST", "/v1/responses", {{"input", "x"}, {"store", false}}).body);
  EXPECT_EQ(Ask("GET", "/v1/responses/" + unkept["id"].get<std::string>()).status, 404);
}

TEST_F(ResponsesServerTest, CancelsAStream) {
  Start();
  service_.SetScripts({Bytes("abc")});
  service_.HoldAt(5);
  HttpClient client(port_);
  Send(&client, "POST", "/v1/responses", {{"input", "hi"}, {"stream", true}});
  ASSERT_TRUE(client.ReadUntil("response.output_text.delta"));
  const std::string& seen = client.buffered();
  const std::size_t at = seen.find("resp_");
  const std::string id = seen.substr(at, seen.find('"', at) - at);
  const Reply running = Ask("GET", "/v1/responses/" + id);
  EXPECT_EQ(Json::parse(running.body)["status"], "in_progress");
  const Reply cancelled = Ask("POST", "/v1/responses/" + id + "/cancel");
  EXPECT_EQ(Json::parse(cancelled.body)["status"], "cancelled");
  const auto events = NamedEvents(client.Read().body);
  EXPECT_EQ(events.back().name, "response.incomplete");
  EXPECT_EQ(events.back().data["response"]["status"], "cancelled");
  EXPECT_TRUE(service_.WaitRunning(0));
  EXPECT_EQ(Json::parse(Ask("GET", "/v1/responses/" + id).body)["status"], "cancelled");
}

}  // namespace
}  // namespace inferd::api
