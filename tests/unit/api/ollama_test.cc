// SPDX-License-Identifier: Apache-2.0
// Ollama's API: what its handlers make of a request, what they refuse by name, and the lines of a
// stream.
#include "api/ollama/endpoints.h"
#include "api/ollama/ollama_format.h"
#include "protocol_fixture.h"

#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace inferd::api {
namespace {

std::vector<Json> Lines(const std::string& stream) {
  std::vector<Json> lines;
  std::istringstream in(stream);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(Json::parse(line));
  }
  EXPECT_TRUE(stream.ends_with('\n'));
  return lines;
}

class OllamaTest : public ProtocolTest {
 protected:
  Answer Chat(const std::string& fields) {
    Json body = {{"model", "test-model"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    body.update(Json::parse("{" + fields + "}"));
    return Call(OllamaChat, body);
  }
  Answer Generate(const std::string& fields) {
    Json body = {{"model", "test-model"}, {"prompt", "hi"}};
    body.update(Json::parse("{" + fields + "}"));
    return Call(OllamaGenerate, body);
  }
};

struct Wrong {
  std::string fields;
  std::string param;
  int status = 400;
};

TEST_F(OllamaTest, RefusesMalformedFieldsByName) {
  const std::vector<Wrong> cases = {
      {R"("model":null)", "model"},
      {R"("model":"other")", "model", 404},
      {R"("messages":{})", "messages"},
      {R"("messages":["x"])", "messages[0]"},
      {R"("messages":[{"role":"robot","content":"x"}])", "messages[0].role"},
      {R"("messages":[{"role":"user"}])", "messages[0].content"},
      {R"("messages":[{"role":"user","content":[]}])", "messages[0].content"},
      {R"("messages":[{"role":"user","content":"x","images":["AA=="]}])", "messages[0].images"},
      {R"("messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}])",
       "messages[0].tool_calls[0]"},
      {R"("stream":1)", "stream"},
      {R"("think":"much")", "think"},
      {R"("options":[])", "options"},
      {R"("options":{"temperature":-1})", "options.temperature"},
      {R"("options":{"top_k":1.5})", "options.top_k"},
      {R"("options":{"num_predict":"x"})", "options.num_predict"},
      {R"("options":{"stop":[""]})", "options.stop[0]"},
      {R"("options":{"repeat_penalty":0})", "options.repeat_penalty"},
      {R"("options":{"mirostat":1})", "options.mirostat"},
      {R"("template":"x")", "template"},
      {R"("logprobs":true)", "logprobs"},
      {R"("format":"xml")", "format"},
      {R"("format":{"type":"nonsense"})", "format"},
      {R"("tools":5)", "tools"},
      {R"("tools":[{"type":"web_search"}])", "tools[0].type"},
      {R"("tools":[{"function":{}}])", "tools[0].function.name"},
      {R"("tools":[{"function":{"name":"f"}}])", "tools"},  // this model has no dialect
  };
  for (const Wrong& wrong : cases) {
    const Answer answer = Chat(wrong.fields);
    EXPECT_EQ(answer.status(), wrong.status) << wrong.fields;
    EXPECT_EQ(answer.fault.param, wrong.param) << wrong.fields << ": " << answer.message();
  }
  for (const Wrong& wrong : std::vector<Wrong>{{R"("suffix":"x")", "suffix"},
                                               {R"("context":[1])", "context"},
                                               {R"("images":["x"])", "images"},
                                               {R"("raw":"x")", "raw"},
                                               {R"("prompt":5)", "prompt"},
                                               {R"("system":5)", "system"}}) {
    const Answer answer = Generate(wrong.fields);
    EXPECT_EQ(answer.status(), 400) << wrong.fields;
    EXPECT_EQ(answer.fault.param, wrong.param) << wrong.fields;
  }
}

TEST_F(OllamaTest, MapsOptions) {
  const leader::GenerateRequest request = Made(Chat(
      R"("model":"test-model:latest","keep_alive":"5m","format":"","options":{"temperature":0.5,
         "top_k":3,"top_p":0.5,"min_p":0.1,"seed":7,"num_predict":9,"repeat_penalty":1.1,
         "presence_penalty":0.2,"frequency_penalty":0.3,"num_ctx":512,"mirostat":0})"));
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_k, 3);
  EXPECT_EQ(request.sampling.seed, 7U);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.1);
  EXPECT_EQ(request.sampling.presence_penalty, 0.2);
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_GT(Made(Chat(R"("options":{"num_predict":-1})")).max_tokens, 900);
}

TEST_F(OllamaTest, RendersPrompts) {
  EXPECT_EQ(Prompt(Generate(R"("system":"s")")), "<s><|user|>system:s<|user|>user:hi<|assistant|>");
  EXPECT_EQ(Prompt(Generate(R"("raw":true,"system":"s")")), "<s>hi");
  EXPECT_EQ(Prompt(Chat(R"("messages":[{"role":"system","content":"s"},
                                       {"role":"user","content":"a"}])")),
            "<s><|user|>system:s<|user|>user:a<|assistant|>");
}

TEST_F(OllamaTest, AnswersALoadRequestAtOnce) {
  const Json chat = Body(Chat(R"("messages":[])"));
  EXPECT_EQ(chat["done_reason"], "load");
  EXPECT_EQ(chat["message"]["content"], "");
  const Json generate = Body(Generate(R"("prompt":"")"));
  EXPECT_EQ(generate["done_reason"], "load");
  EXPECT_EQ(generate["response"], "");
}

TEST_F(OllamaTest, DescribesTheModel) {
  const Json tags = Body(Call(OllamaTags, nullptr));
  EXPECT_EQ(tags["models"][0]["name"], "test-model");
  EXPECT_EQ(tags["models"][0]["modified_at"], "2023-11-14T22:13:20.000000Z");
  EXPECT_EQ(Body(Call(OllamaShow, {{"model", "test-model"}}))["capabilities"][0], "completion");
  EXPECT_EQ(Call(OllamaShow, {{"model", "other"}}).status(), 404);
}

TEST(OllamaFormat, StreamsThinkingContentAndWholeCalls) {
  OllamaFormat format(OllamaFormat::Shape::kChat, "m");
  const auto lines = Lines(StreamOf(&format, ThinkSayAndCallTwice()));
  ASSERT_EQ(lines.size(), 7U);
  std::string thinking;
  std::string content;
  Json calls = Json::array();
  for (const Json& line : lines) {
    EXPECT_EQ(line["model"], "m");
    EXPECT_TRUE(std::regex_match(line["created_at"].get<std::string>(),
                                 std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)")));
    const Json& message = line["message"];
    thinking += message.value("thinking", "");
    content += message["content"].get<std::string>();
    for (const Json& call : message.value("tool_calls", Json::array())) {
      calls.push_back(call);
    }
    EXPECT_EQ(line["done"], &line == &lines.back());
  }
  EXPECT_EQ(thinking, "Let me see.");
  EXPECT_EQ(content, "Looking.");
  EXPECT_EQ(calls, Json::parse(R"([
      {"id":"call_1","function":{"index":0,"name":"weather","arguments":{"city":"Bern"}}},
      {"id":"call_2","function":{"index":1,"name":"clock","arguments":{}}}])"));
  EXPECT_EQ(lines.back()["done_reason"], "stop");
  EXPECT_EQ(lines.back()["prompt_eval_count"], 10);
  EXPECT_EQ(lines.back()["eval_count"], 7);
  EXPECT_EQ(lines.back()["prompt_eval_duration"], 1'000'000);
  EXPECT_EQ(lines.back()["eval_duration"], 2'000'000);
  EXPECT_EQ(lines.back()["total_duration"], 3'000'000);

  OllamaFormat whole(OllamaFormat::Shape::kChat, "m");
  const Json full = FullOf(&whole, AllInOne(ThinkSayAndCallTwice()));
  EXPECT_EQ(full["message"],
            Json({{"role", "assistant"},
                  {"content", content},
                  {"thinking", thinking},
                  {"tool_calls", calls}}));
  EXPECT_EQ(full["eval_count"], 7);
}

class OllamaServerTest : public ProtocolServerTest {};

TEST_F(OllamaServerTest, StreamsByDefaultAndEqualsTheWholeAnswer) {
  Start();
  for (const std::string path : {"/api/chat", "/api/generate"}) {
    for (const std::int64_t most : {3, 50}) {
      Json body = {{"model", "alias"}, {"options", {{"num_predict", most}}}};
      if (path == "/api/chat") {
        body["messages"] = {{{"role", "user"}, {"content", "hi"}}};
      } else {
        body["prompt"] = "hi";
      }
      const Reply stream = Ask("POST", path, body);
      ASSERT_EQ(stream.status, 200) << stream.body;
      EXPECT_TRUE(stream.Has("content-type: application/x-ndjson"));
      body["stream"] = false;
      const Reply whole = Ask("POST", path, body);
      EXPECT_TRUE(whole.Has("content-type: application/json"));
      const auto text = [&](const Json& line) {
        return (path == "/api/chat" ? line["message"]["content"] : line["response"])
            .get<std::string>();
      };
      const auto lines = Lines(stream.body);
      const Json full = Json::parse(whole.body);
      std::string joined;
      for (const Json& line : lines) {
        joined += text(line);
      }
      EXPECT_EQ(joined, most == 3 ? "Hel" : "Hello");
      EXPECT_EQ(text(full), joined);
      EXPECT_EQ(full["done_reason"], most == 3 ? "length" : "stop");
      for (const char* field : {"done_reason", "eval_count", "prompt_eval_count", "done"}) {
        EXPECT_EQ(full[field], lines.back()[field]) << field;
      }
      EXPECT_GT(full["total_duration"], 0);
    }
  }
}

TEST_F(OllamaServerTest, EndsAFailedStreamWithAnErrorLine) {
  Start();
  service_.FailAfter(2, Error(Code::kUnavailable, "a worker was lost"));
  service_.HoldFailure(true);
  HttpClient client(port_);
  Send(&client, "POST", "/api/generate", {{"model", "alias"}, {"prompt", "hi"}});
  ASSERT_TRUE(client.ReadUntil("\"response\""));
  service_.HoldFailure(false);
  EXPECT_EQ(Lines(client.Read().body).back(), Json::parse(R"({"error":"a worker was lost"})"));
  const Reply missing = Ask("POST", "/api/chat", {{"model", "nope"}});
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(Json::parse(missing.body)["error"],
            "model 'nope' not found; this server has 'test-model'");
}

}  // namespace
}  // namespace inferd::api
