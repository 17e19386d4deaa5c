// SPDX-License-Identifier: Apache-2.0
// What an answer tells of tokens, usage and time, streamed and whole.
#include "server_fixture.h"

namespace inferd::api {
namespace {

class TokenReportTest : public ServerTest {
 protected:
  Json Ask(const std::string& path, const std::string& body) {
    const Reply reply = Post(port_, path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }
  Json Chat(const std::string& fields) { return Ask("/v1/chat/completions", ChatWith(fields)); }
  Json Complete(const std::string& body) { return Ask("/v1/completions", body); }
};

const std::vector<std::int32_t> kHello{'H', 'e', 'l', 'l', 'o', kEos};

TEST_F(TokenReportTest, PromptLogprobsHaveTheShapeOfVllm) {
  Start();
  const Json whole = Complete(R"({"prompt":"ab","prompt_logprobs":2,"max_tokens":1})");
  const Json& scores = whole["choices"][0]["prompt_logprobs"];
  ASSERT_EQ(scores.size(), 3U);  // <s> a b
  EXPECT_TRUE(scores[0].is_null());
  EXPECT_EQ(scores[1],
            Json::parse(R"({"97":{"logprob":-0.5,"rank":1,"decoded_token":"a"},)"
                        R"("66":{"logprob":-9999.0,"rank":2,"decoded_token":"B"}})"));
  EXPECT_EQ(scores[2]["98"]["decoded_token"], "b");
  EXPECT_EQ(Complete(R"({"prompt":"ab","prompt_logprobs":0,"max_tokens":1})")["choices"][0]
                                                                             ["prompt_logprobs"][1]
                                                                                 .size(),
            1U)
      << "the prompt's own token alone";
  EXPECT_FALSE(
      Complete(R"({"prompt":"ab","max_tokens":1})")["choices"][0].contains("prompt_logprobs"));
  const Json nothing = Complete(R"({"prompt":"ab","prompt_logprobs":1,"max_tokens":0})");
  EXPECT_EQ(nothing["choices"][0]["prompt_logprobs"].size(), 3U);
  EXPECT_EQ(nothing["choices"][0]["text"], "");

  const Json chat = Chat(R"("prompt_logprobs":1)");
  EXPECT_EQ(chat["prompt_logprobs"].size(), chat["usage"]["prompt_tokens"].get<std::size_t>());
  EXPECT_TRUE(chat["prompt_logprobs"][0].is_null());
  EXPECT_FALSE(chat["choices"][0].contains("prompt_logprobs"));
}

TEST_F(TokenReportTest, EchoAndPromptLogprobsEachHaveWhatTheyAskFor) {
  Start();
  const Json body = Complete(
      R"({"prompt":"ab","echo":true,"logprobs":1,"prompt_logprobs":3,"max_tokens":1,"n":2})");
  ASSERT_EQ(body["choices"].size(), 2U);
  for (const Json& choice : body["choices"]) {
    EXPECT_EQ(choice["text"], "abH");
    ASSERT_EQ(choice["logprobs"]["tokens"], Json::parse(R"(["<s>","a","b","H"])"));
    EXPECT_EQ(choice["logprobs"]["top_logprobs"][1].size(), 1U);
    ASSERT_EQ(choice["prompt_logprobs"].size(), 3U);
    EXPECT_EQ(choice["prompt_logprobs"][1].size(), 3U);
  }
}

TEST_F(TokenReportTest, TokenIdsOfPromptAndAnswer) {
  Start();
  const Json chat = Chat(R"("return_token_ids":true)");
  EXPECT_EQ(chat["choices"][0]["token_ids"], Json(kHello)) << "the end token is one of them";
  const std::vector<std::int32_t> prompt = chat["prompt_token_ids"];
  EXPECT_EQ(ByteTokenizer()->Decode(prompt, false), "<s><|user|>user:hi<|assistant|>");
  const Json completion = Complete(R"({"prompt":["a","bc"],"return_token_ids":true})");
  EXPECT_EQ(completion["choices"][1]["token_ids"], Json(kHello));
  EXPECT_EQ(completion["choices"][1]["prompt_token_ids"], Json({kBos, 'b', 'c'}));
  const Json plain = Chat(R"("n":1)");
  EXPECT_FALSE(plain.contains("prompt_token_ids"));
  EXPECT_FALSE(plain["choices"][0].contains("token_ids"));
}

TEST_F(TokenReportTest, StreamedTokenIdsJoinToTheWholeOnes) {
  Start();
  // Two tokens of one character each but for the last, which is hidden: ids come even so.
  const auto chat = Events(Post(port_,
                                "/v1/chat/completions",
                                ChatWith(R"("return_token_ids":true,"stream":true,"n":2)"))
                               .body);
  std::map<int, std::vector<std::int32_t>> ids;
  std::map<int, int> prompts;
  for (const Json& event : chat) {
    const Json& choice = event["choices"][0];
    for (const Json& id : choice.value("token_ids", Json::array())) {
      ids[choice["index"]].push_back(id);
    }
    if (event.contains("prompt_token_ids")) {
      EXPECT_EQ(event["prompt_token_ids"].front(), kBos);
      EXPECT_TRUE(choice["delta"].contains("role"));
      ++prompts[choice["index"]];
    }
  }
  EXPECT_EQ(ids, (std::map<int, std::vector<std::int32_t>>{{0, kHello}, {1, kHello}}));
  EXPECT_EQ(prompts, (std::map<int, int>{{0, 1}, {1, 1}}));

  const auto text = Events(
      Post(port_, "/v1/completions", R"({"prompt":"a","return_token_ids":true,"stream":true})")
          .body);
  std::vector<std::int32_t> joined;
  int with_prompt = 0;
  for (const Json& event : text) {
    const Json& choice = event["choices"][0];
    joined.insert(joined.end(), choice["token_ids"].begin(), choice["token_ids"].end());
    with_prompt += choice.contains("prompt_token_ids") ? 1 : 0;
  }
  EXPECT_EQ(joined, kHello);
  EXPECT_EQ(text.front()["choices"][0]["prompt_token_ids"], Json({kBos, 'a'}));
  EXPECT_EQ(with_prompt, 1);
}

TEST_F(TokenReportTest, LogprobsCanNameTokensById) {
  Start();
  const Json chat =
      Chat(R"("logprobs":true,"top_logprobs":2,"return_tokens_as_token_ids":true,"max_tokens":1)");
  const Json& item = chat["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(item["token"], "token_id:72");
  EXPECT_EQ(item["bytes"], Json({'H'}));
  EXPECT_EQ(item["top_logprobs"][1]["token"], "token_id:66");
  const Json completion =
      Complete(R"({"prompt":"a","logprobs":1,"return_tokens_as_token_ids":true,"max_tokens":1})");
  EXPECT_EQ(completion["choices"][0]["logprobs"]["tokens"], Json({"token_id:72"}));
  EXPECT_TRUE(completion["choices"][0]["logprobs"]["top_logprobs"][0].contains("token_id:72"));
}

TEST_F(TokenReportTest, ContinuousUsageCountsUpToTheTotal) {
  Start();
  for (const char* path : {"/v1/chat/completions", "/v1/completions"}) {
    const std::string prompt = std::string(path).ends_with("chat/completions")
                                   ? R"("messages":[{"role":"user","content":"hi"}])"
                                   : R"("prompt":"hi")";
    const auto events = Events(
        Post(
            port_,
            path,
            "{" + prompt +
                R"(,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}})")
            .body);
    std::int64_t before = 0;
    for (const Json& event : events) {
      ASSERT_TRUE(event.contains("usage")) << event;
      const Json& usage = event["usage"];
      EXPECT_GE(usage["completion_tokens"].get<std::int64_t>(), before);
      before = usage["completion_tokens"];
      EXPECT_EQ(usage["total_tokens"], usage["prompt_tokens"].get<std::int64_t>() + before);
      EXPECT_EQ(usage["prompt_tokens"], events.back()["usage"]["prompt_tokens"]);
    }
    EXPECT_TRUE(events.back()["choices"].empty());
    EXPECT_EQ(before, 6);
  }
  // As vLLM: not without include_usage.
  const auto silent = Events(
      Post(port_,
           "/v1/completions",
           R"({"prompt":"a","stream":true,"stream_options":{"continuous_usage_stats":true}})")
          .body);
  for (const Json& event : silent) {
    EXPECT_FALSE(event.contains("usage"));
  }
}

TEST_F(TokenReportTest, TimingsOnRequest) {
  Start();
  const Json chat = Chat(R"("timings_per_token":true)");
  const Json& timings = chat["timings"];
  EXPECT_EQ(timings["predicted_n"], 6);
  EXPECT_EQ(timings["cache_n"], 1);
  EXPECT_EQ(timings["prompt_n"], chat["usage"]["prompt_tokens"].get<int>() - 1);
  EXPECT_GT(timings["prompt_ms"].get<double>(), 0);
  for (const char* name : {"prompt_per_token_ms",
                           "prompt_per_second",
                           "predicted_ms",
                           "predicted_per_token_ms",
                           "predicted_per_second"}) {
    EXPECT_GE(timings[name].get<double>(), 0) << name;
  }
  const auto events = Events(
      Post(port_, "/v1/completions", R"({"prompt":"a","stream":true,"timings_per_token":true})")
          .body);
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events.back()["timings"]["predicted_n"], 6);
  EXPECT_FALSE(Chat(R"("n":1)").contains("timings"));
}

TEST_F(TokenReportTest, TheEchoOfACutPromptIsWhatIsLeft) {
  Start();
  const Json body =
      Complete(R"({"prompt":"abcdef","echo":true,"truncate_prompt_tokens":3,"max_tokens":1})");
  EXPECT_EQ(body["choices"][0]["text"], "efH");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
}

}  // namespace
}  // namespace inferd::api
