// SPDX-License-Identifier: Apache-2.0
// What looks at requests from outside: /render, /abort, /load, /startupz.
#include "api/openai/endpoints.h"
#include "protocol_fixture.h"

#include <string>

namespace inferd::api {
namespace {

class RenderTest : public ProtocolTest {};

TEST_F(RenderTest, ChatShowsWhatWouldRun) {
  const Json chat = {{"model", "test-model"},
                     {"messages", {{{"role", "user"}, {"content", "hi"}}}},
                     {"temperature", 0.125},
                     {"max_tokens", 7},
                     {"stop", "END"},
                     {"stream", true}};
  const Json rendered = Body(Call(RenderChatPrompt, chat));
  const leader::GenerateRequest request = Made(Call(ChatCompletions, chat));
  EXPECT_EQ(rendered["token_ids"], request.prompt);
  EXPECT_TRUE(rendered["request_id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(rendered["model"], "test-model");
  EXPECT_EQ(rendered["stream"], true);
  EXPECT_EQ(rendered["sampling_params"]["temperature"], 0.125);
  EXPECT_EQ(rendered["sampling_params"]["max_tokens"], 7);
  EXPECT_EQ(rendered["sampling_params"]["stop"], Json::array({"END"}));
  EXPECT_TRUE(rendered["sampling_params"]["seed"].is_null());
}

TEST_F(RenderTest, CompletionsShowEachPrompt) {
  const Json rendered = Body(Call(RenderCompletionPrompts, {{"prompt", {"a", "bc"}}, {"seed", 3}}));
  ASSERT_EQ(rendered.size(), 2U);
  EXPECT_EQ(rendered[0]["token_ids"], Json({kBos, 'a'}));
  EXPECT_EQ(rendered[1]["token_ids"], Json({kBos, 'b', 'c'}));
  EXPECT_EQ(rendered[0]["sampling_params"]["seed"], 3);
  EXPECT_TRUE(rendered[0]["request_id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(Body(Call(RenderCompletionPrompts, {{"prompt", {5, 6}}}))[0]["token_ids"],
            Json({5, 6}));
}

TEST_F(RenderTest, RefusesAsTheRequestItselfWouldBe) {
  EXPECT_EQ(Call(RenderChatPrompt, {{"messages", Json::array()}}).fault.param, "messages");
  EXPECT_EQ(Call(RenderCompletionPrompts, {{"prompt", "a"}, {"suffix", "b"}}).fault.param,
            "suffix");
  EXPECT_EQ(Call(RenderCompletionPrompts, {{"prompt", "a"}, {"model", "x"}}).status(), 404);
  EXPECT_EQ(
      Call(RenderCompletionPrompts, {{"prompt", "a"}, {"return_token_offsets", true}}).fault.param,
      "return_token_offsets");
}

class AbortTest : public ProtocolServerTest {
 protected:
  static Json Chat(bool stream) {
    return {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"stream", stream}};
  }
};

TEST_F(AbortTest, EndsAStreamByItsRequestId) {
  Start();
  service_.SetScripts({Bytes("abc")});
  service_.HoldAt(5);
  HttpClient client(port_);
  Send(&client, "POST", "/v1/chat/completions", Chat(true), "X-Request-Id: mine\r\n");
  ASSERT_TRUE(client.ReadUntil("\"content\":\"a"));
  EXPECT_EQ(Ask("POST", "/abort", {{"request_id", "other"}}).body, R"({"aborted":0})");
  EXPECT_EQ(Ask("POST", "/abort", {{"request_id", "mine"}}).body, R"({"aborted":1})");
  const auto joined = Join(Events(client.Read().body));
  EXPECT_EQ(joined.at(0).finish, "abort");
  EXPECT_TRUE(joined.at(0).text.starts_with("a")) << "what was said is kept";
  EXPECT_TRUE(service_.WaitRunning(0));
  EXPECT_EQ(Ask("POST", "/abort", {{"request_id", "mine"}}).body, R"({"aborted":0})");
}

TEST_F(AbortTest, EndsWholeAnswersByAList) {
  Start();
  service_.SetScripts({Bytes("abc")});
  service_.Pause(true);
  HttpClient client(port_);
  Json body = Chat(false);
  body["n"] = 2;
  Send(&client, "POST", "/v1/chat/completions", body, "X-Request-Id: whole\r\n");
  ASSERT_TRUE(service_.WaitRunning(2));
  EXPECT_EQ(Ask("POST", "/abort_requests", {{"request_ids", {"no", "whole"}}}).body,
            R"({"aborted":1})");
  const Reply reply = client.Read();
  EXPECT_EQ(reply.status, 200);
  const Json whole = Json::parse(reply.body);
  for (const Json& choice : whole["choices"]) {
    EXPECT_EQ(choice["finish_reason"], "abort");
    EXPECT_EQ(choice["message"]["content"], "");
  }
  EXPECT_TRUE(service_.WaitRunning(0));
}

TEST_F(AbortTest, RefusesMalformedNames) {
  Start();
  EXPECT_EQ(Json::parse(Ask("POST", "/abort", Json::object()).body)["error"]["param"],
            "request_id");
  EXPECT_EQ(Json::parse(Ask("POST", "/abort", {{"request_ids", "x"}}).body)["error"]["param"],
            "request_ids");
  EXPECT_EQ(Json::parse(Ask("POST", "/abort", {{"request_ids", {1}}}).body)["error"]["param"],
            "request_ids[0]");
}

class StateTest : public ProtocolServerTest {};

TEST_F(StateTest, StartupSaysHowFarTheLoadIs) {
  Start();
  service_.SetPhase(leader::Phase::kLoading);
  const Reply loading = Ask("GET", "/startupz");
  EXPECT_EQ(loading.status, 503);
  const Json body = Json::parse(loading.body);
  EXPECT_EQ(body["status"], "loading");
  EXPECT_EQ(body["bytes_done"], 1);
  EXPECT_EQ(body["bytes_total"], 2);
  EXPECT_GE(body["seconds_left"], 0);
  service_.SetPhase(leader::Phase::kReady);
  EXPECT_EQ(Ask("GET", "/startupz").status, 200);
  service_.SetPhase(leader::Phase::kRecovering);
  EXPECT_EQ(Ask("GET", "/startupz").status, 200) << "what has started stays started";
  service_.SetPhase(leader::Phase::kFailed);
  EXPECT_EQ(Ask("GET", "/startupz").status, 503);
}

TEST_F(StateTest, LoadCountsWhatRuns) {
  Start();
  EXPECT_EQ(Json::parse(Ask("GET", "/load").body)["server_load"], 0);
  service_.Pause(true);
  HttpClient client(port_);
  Send(&client, "POST", "/v1/completions", {{"prompt", "x"}});
  ASSERT_TRUE(service_.WaitRunning(1));
  const Json load = Json::parse(Ask("GET", "/load").body);
  EXPECT_EQ(load["server_load"], 1);
  EXPECT_EQ(load["kv_pages_total"], 16);
  EXPECT_EQ(load["kv_pages_used"], 4);
  service_.Pause(false);
  EXPECT_EQ(client.Read().status, 200);
}

}  // namespace
}  // namespace inferd::api
