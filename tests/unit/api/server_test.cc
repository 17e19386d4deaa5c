// SPDX-License-Identifier: Apache-2.0
// The whole front end over loopback: what is generated, whole and streamed.
#include "api/server/server.h"

#include "server_fixture.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace inferd::api {
namespace {

TEST_F(ServerTest, ChatAnswersWhole) {
  Start();
  const Reply reply = Post(port_, "/v1/chat/completions", kChat);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_TRUE(reply.Has("content-type: application/json\r\n"));
  EXPECT_TRUE(reply.Has("x-request-id: "));
  const Json body = Json::parse(reply.body);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "test-model");
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(body["choices"].size(), 1U);
  EXPECT_EQ(body["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["usage"]["completion_tokens"], 6) << "the end token counts";
  EXPECT_EQ(body["usage"]["prompt_tokens"], service_.last()->prompt.size());
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
}

TEST_F(ServerTest, ChatStreamsTheSame) {
  Start();
  const Reply reply = Post(port_, "/v1/chat/completions", ChatWith(R"("stream":true)"));
  ASSERT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.Has("content-type: text/event-stream"));
  EXPECT_TRUE(reply.Has("cache-control: no-cache"));
  const auto events = Events(reply.body);
  ASSERT_GE(events.size(), 2U);
  EXPECT_EQ(events[0]["choices"][0]["delta"]["role"], "assistant");
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    EXPECT_EQ(event["id"], events[0]["id"]);
    EXPECT_FALSE(event.contains("usage"));
  }
  const auto joined = Join(events);
  EXPECT_EQ(joined.at(0).text, "Hello");
  EXPECT_EQ(joined.at(0).finish, "stop");
  EXPECT_EQ(joined.at(0).finishes, 1);
}

TEST_F(ServerTest, UsageComesOnceAtTheEndWhenAskedFor) {
  Start();
  for (const char* options : {"{}", "null", R"({"include_usage":false})"}) {
    const auto events =
        Events(Post(port_,
                    "/v1/chat/completions",
                    ChatWith(R"("stream":true,"stream_options":)" + std::string(options)))
                   .body);
    for (const Json& event : events) {
      EXPECT_FALSE(event.contains("usage")) << options;
    }
  }
  const auto events =
      Events(Post(port_,
                  "/v1/chat/completions",
                  ChatWith(R"("stream":true,"stream_options":{"include_usage":true})"))
                 .body);
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 6);
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_TRUE(!events[i].contains("usage") || events[i]["usage"].is_null());
  }
  EXPECT_FALSE(events[events.size() - 2]["choices"][0]["finish_reason"].is_null());
}

TEST_F(ServerTest, UsageIsForcedOnStreamsThatDidNotAsk) {
  auto model = std::make_shared<ServedModel>(*TestModel());
  model->force_include_usage = true;
  HttpOptions options;
  options.port = 0;
  auto started = Server::Start(options, model, &service_);
  ASSERT_TRUE(started.ok()) << started.error().message();
  server_ = *std::move(started);
  const auto events =
      Events(Post(server_->port(), "/v1/chat/completions", ChatWith(R"("stream":true)")).body);
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 6);
}

TEST_F(ServerTest, StopStringsOverTokens) {
  Start();
  auto script = Bytes("The quick brown fox");
  service_.SetScripts({WithEos(script)});
  for (const bool include : {false, true}) {
    const std::string fields = R"("stop":["own fox"],"include_stop_str_in_output":)" +
                               std::string(include ? "true" : "false");
    const std::string expected = include ? "The quick brown fox" : "The quick br";
    const Json whole = Json::parse(Post(port_, "/v1/chat/completions", ChatWith(fields)).body);
    EXPECT_EQ(whole["choices"][0]["message"]["content"], expected);
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "stop");
    EXPECT_EQ(whole["choices"][0]["stop_reason"], "own fox");
    EXPECT_EQ(whole["usage"]["completion_tokens"], 19);
    const auto joined = Join(
        Events(Post(port_, "/v1/chat/completions", ChatWith(fields + R"(,"stream":true)")).body));
    EXPECT_EQ(joined.at(0).text, expected);
    EXPECT_EQ(joined.at(0).finish, "stop");
    EXPECT_EQ(joined.at(0).finishes, 1);
    const Json completion = Json::parse(
        Post(port_, "/v1/completions", R"({"prompt":"a","max_tokens":100,)" + fields + "}").body);
    EXPECT_EQ(completion["choices"][0]["text"], expected);
  }
  EXPECT_TRUE(service_.WaitRunning(0)) << "a found stop string ends the choice in the engine";
  EXPECT_GE(service_.cancels(), 6U);
}

TEST_F(ServerTest, StopTokensAreNotShown) {
  Start();
  service_.SetScripts({Bytes("abcd")});
  Json body =
      Json::parse(Post(port_, "/v1/chat/completions", ChatWith(R"("stop_token_ids":[99])")).body);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "ab");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["stop_reason"], 99);
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
  service_.SetScripts({{'a', kEos, 'b', kEos}});
  body = Json::parse(
      Post(port_, "/v1/chat/completions", ChatWith(R"("ignore_eos":true,"max_tokens":4)")).body);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "ab");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  body =
      Json::parse(Post(port_,
                       "/v1/chat/completions",
                       ChatWith(R"("ignore_eos":true,"max_tokens":4,"skip_special_tokens":false)"))
                      .body);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "a</s>b</s>");
}

TEST_F(ServerTest, MinTokensKeepsStopStringsAway) {
  Start();
  service_.SetScripts({WithEos(Bytes("x.x.x.x."))});
  const Json body = Json::parse(
      Post(port_, "/v1/chat/completions", ChatWith(R"("stop":".","min_tokens":3)")).body);
  EXPECT_EQ(body["choices"][0]["message"]["content"], "x.x");
}

/// A cut inside a character: valid UTF-8 only, the same streamed and whole.
TEST_F(ServerTest, NeverHalfACharacter) {
  Start();
  service_.SetScripts({WithEos(Bytes("😊"))});
  for (int max_tokens = 1; max_tokens <= 4; ++max_tokens) {
    const std::string fields = "\"max_tokens\":" + std::to_string(max_tokens);
    const Json whole = Json::parse(Post(port_, "/v1/chat/completions", ChatWith(fields)).body);
    const std::string expected = max_tokens == 4 ? "😊" : "\xef\xbf\xbd";
    EXPECT_EQ(whole["choices"][0]["message"]["content"], expected) << max_tokens;
    EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
    EXPECT_EQ(whole["usage"]["completion_tokens"], max_tokens);
    const auto joined = Join(
        Events(Post(port_, "/v1/chat/completions", ChatWith(fields + R"(,"stream":true)")).body));
    EXPECT_EQ(joined.at(0).text, expected) << max_tokens;
  }
}

TEST_F(ServerTest, ManyChoicesEachOnce) {
  Start();
  service_.SetScripts({WithEos(Bytes("one")), WithEos(Bytes("two and more")), WithEos({})});
  const Json whole = Json::parse(Post(port_, "/v1/chat/completions", ChatWith(R"("n":3)")).body);
  ASSERT_EQ(whole["choices"].size(), 3U);
  const std::vector<std::string> expected{"one", "two and more", ""};
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(whole["choices"][i]["index"], i);
    EXPECT_EQ(whole["choices"][i]["message"]["content"], expected[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(whole["usage"]["completion_tokens"], 4 + 13 + 1);
  EXPECT_EQ(whole["usage"]["prompt_tokens"], service_.last()->prompt.size())
      << "the prompt counts once";
  const auto joined =
      Join(Events(Post(port_, "/v1/chat/completions", ChatWith(R"("n":3,"stream":true)")).body));
  ASSERT_EQ(joined.size(), 3U);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(joined.at(i).text, expected[static_cast<std::size_t>(i)]);
    EXPECT_EQ(joined.at(i).finishes, 1);
  }
}

TEST_F(ServerTest, ChatLogprobs) {
  Start();
  service_.SetScripts({WithEos(Bytes("é"))});
  const std::string fields = R"("logprobs":true,"top_logprobs":2)";
  const Json whole = Json::parse(Post(port_, "/v1/chat/completions", ChatWith(fields)).body);
  const Json& content = whole["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 3U);
  EXPECT_EQ(content[0]["token"], "\xef\xbf\xbd");
  EXPECT_EQ(content[0]["bytes"], std::vector<int>{0xc3});
  EXPECT_EQ(content[0]["logprob"], -0.5);
  ASSERT_EQ(content[0]["top_logprobs"].size(), 2U);
  EXPECT_EQ(content[0]["top_logprobs"][1]["logprob"], -9999.0) << "minus infinity";
  EXPECT_EQ(content[2]["token"], "</s>");
  const auto joined = Join(
      Events(Post(port_, "/v1/chat/completions", ChatWith(fields + R"(,"stream":true)")).body));
  EXPECT_EQ(Json(joined.at(0).logprobs), content);
  EXPECT_TRUE(Json::parse(Post(port_, "/v1/chat/completions", kChat).body)["choices"][0]["logprobs"]
                  .is_null());
}

TEST_F(ServerTest, CompletionsEchoAndLogprobs) {
  Start();
  const Json body = Json::parse(
      Post(port_, "/v1/completions", R"({"prompt":"wob","echo":true,"logprobs":1,"max_tokens":2})")
          .body);
  const Json& choice = body["choices"][0];
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(choice["text"], "wobHe");
  EXPECT_EQ(choice["logprobs"]["tokens"], (std::vector<std::string>{"<s>", "wo", "b", "H", "e"}));
  EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_TRUE(choice["logprobs"]["top_logprobs"][0].is_null());
  EXPECT_EQ(choice["logprobs"]["token_logprobs"][1], -0.5);
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][1], Json({{"wo", -0.5}}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], (std::vector<int>{0, 3, 5, 6, 7}));
  EXPECT_EQ(choice["finish_reason"], "length");
}

TEST_F(ServerTest, NothingToGenerate) {
  Start();
  Json body = Json::parse(
      Post(port_, "/v1/completions", R"({"prompt":"Your answer: Yes","echo":true,"max_tokens":0})")
          .body);
  EXPECT_EQ(body["choices"][0]["text"], "Your answer: Yes");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["completion_tokens"], 0);
  EXPECT_EQ(service_.tokens(), 0U);
  body =
      Json::parse(Post(port_,
                       "/v1/completions",
                       R"({"prompt":"Your answer: Yes","echo":true,"max_tokens":0,"logprobs":1})")
                      .body);
  EXPECT_EQ(body["choices"][0]["text"], "Your answer: Yes");
  EXPECT_EQ(body["usage"]["completion_tokens"], 0);
  EXPECT_TRUE(body["choices"][0]["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"].size(), 17U);
  const auto joined = Join(Events(
      Post(port_, "/v1/completions", R"({"prompt":"Yes","echo":true,"max_tokens":0,"stream":true})")
          .body));
  EXPECT_EQ(joined.at(0).text, "Yes");
  EXPECT_EQ(joined.at(0).finish, "length");
}

TEST_F(ServerTest, ManyPrompts) {
  Start();
  const Json body = Json::parse(
      Post(port_, "/v1/completions", R"({"prompt":["a","bb","c"],"n":2,"echo":true})").body);
  ASSERT_EQ(body["choices"].size(), 6U);
  const std::vector<std::string> expected{
      "aHello", "aHello", "bbHello", "bbHello", "cHello", "cHello"};
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], expected[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], 2 + 3 + 2);
  EXPECT_EQ(body["usage"]["completion_tokens"], 36);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
}

TEST_F(ServerTest, SubmitErrorsBecomeStatuses) {
  Start();
  service_.FailNextSubmit(ResourceExhausted("the queue is full"));
  const Reply full = Post(port_, "/v1/chat/completions", ChatWith(R"("stream":true)"));
  EXPECT_EQ(full.status, 429);
  EXPECT_TRUE(full.Has("retry-after: "));
  std::set<std::int64_t> waits;
  for (int i = 0; i < 12; ++i) {
    service_.FailNextSubmit(ResourceExhausted("the queue is full"), 4000);
    const Reply reply = Post(port_, "/v1/chat/completions", kChat);
    const std::int64_t wait_ms = std::stoll(reply.Header("retry-after-ms"));
    EXPECT_GE(wait_ms, 4000) << "no earlier than it may work";
    EXPECT_LE(wait_ms, 5250);
    EXPECT_EQ(reply.Header("retry-after"), std::to_string((wait_ms + 999) / 1000));
    waits.insert(wait_ms);
  }
  EXPECT_GT(waits.size(), 3U) << "those refused together come back together";
  service_.FailNextSubmit(Unavailable("gone"));
  EXPECT_EQ(Post(port_, "/v1/chat/completions", kChat).status, 503);
  EXPECT_EQ(Post(port_, "/v1/chat/completions", kChat).status, 200);
}

TEST_F(ServerTest, AnEngineErrorIsToldInEitherMode) {
  Start();
  service_.FailAfter(0, Internal("it broke"));
  EXPECT_EQ(Post(port_, "/v1/chat/completions", ChatWith(R"("stream":true)")).status, 500)
      << "nothing was sent yet";
  service_.FailAfter(2, Internal("it broke"));
  EXPECT_EQ(Post(port_, "/v1/chat/completions", kChat).status, 500);
  // The failure comes once the client has seen the stream begin; one that overtakes the first event
  // still gets a status of its own, as above.
  service_.HoldFailure(true);
  HttpClient client(port_);
  client.Send(PostBytes("/v1/chat/completions", ChatWith(R"("stream":true)")));
  ASSERT_TRUE(client.ReadUntil("content\":\"H"));
  service_.HoldFailure(false);
  const Reply reply = client.Read();
  EXPECT_EQ(reply.status, 200);
  const auto events = Events(reply.body);
  EXPECT_EQ(events.back()["error"]["type"], "internal_server_error");
  EXPECT_EQ(events.back()["error"]["message"].get<std::string>().find("it broke"),
            std::string::npos)
      << "what broke inside is for the log";
}

}  // namespace
}  // namespace inferd::api
