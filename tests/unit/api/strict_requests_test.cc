// SPDX-License-Identifier: Apache-2.0
// --strict-requests: unknown fields are refused by name, all known ones are not.
#include "server_fixture.h"

namespace inferd::api {
namespace {

class StrictRequestsTest : public ServerTest {
 protected:
  void StartStrict() {
    HttpOptions options;
    options.strict_requests = true;
    Start(options);
  }
  Json Refusal(const std::string& path, const std::string& body) {
    const Reply reply = Post(port_, path, body);
    EXPECT_EQ(reply.status, 400) << path << ": " << reply.body;
    return Json::parse(reply.body)["error"];
  }
};

TEST_F(StrictRequestsTest, RefusesAnUnknownFieldByName) {
  StartStrict();
  for (const char* stream : {"true", "false"}) {
    const Json error = Refusal("/v1/chat/completions",
                               ChatWith(R"("max_token":5,"stream":)" + std::string(stream)));
    EXPECT_EQ(error["param"], "max_token");
    EXPECT_EQ(error["code"], "unknown_parameter");
  }
  EXPECT_EQ(Refusal("/v1/completions", R"({"prompt":"x","messages":[]})")["param"], "messages");
  EXPECT_EQ(Refusal("/v1/embeddings", R"({"input":"x","dims":3})")["param"], "dims");
  EXPECT_EQ(Refusal("/tokenize", R"({"prompt":"x","text":"y"})")["param"], "text");
  EXPECT_EQ(Refusal("/v1/responses", R"({"input":"x","max_tokens":3})")["param"], "max_tokens");
  EXPECT_EQ(service_.tokens(), 0U) << "nothing may have run";
}

TEST_F(StrictRequestsTest, TakesEveryFieldItKnows) {
  StartStrict();
  const std::string common =
      R"("model":null,"temperature":0,"top_p":1,"top_k":1,"min_p":0,"n":1,"seed":1,"stop":["zz"],)"
      R"("max_tokens":2,"presence_penalty":0,"frequency_penalty":0,"repetition_penalty":1,)"
      R"("logit_bias":{},"min_tokens":0,"ignore_eos":false,"stop_token_ids":[],"priority":0,)"
      R"("stream":false,"user":"u","best_of":1,"suffix":"","skip_special_tokens":true,)"
      R"("include_stop_str_in_output":false,"service_tier":"auto","timings_per_token":false,)"
      R"("return_token_ids":false,"cache_salt":"s","bad_words":[],"dry_multiplier":0)";
  EXPECT_EQ(Post(port_,
                 "/v1/chat/completions",
                 ChatWith(common + R"(,"max_completion_tokens":2,"logprobs":false,"tools":[],)"
                                   R"("parallel_tool_calls":true,"chat_template_kwargs":{},)"
                                   R"("add_generation_prompt":true,"reasoning_effort":null)"))
                .status,
            200);
  EXPECT_EQ(
      Post(
          port_, "/v1/completions", R"({"prompt":"x","echo":false,"logprobs":null,)" + common + "}")
          .status,
      200);
  EXPECT_EQ(Post(port_,
                 "/v1/messages",
                 R"({"max_tokens":2,"messages":[{"role":"user","content":"hi"}],"system":"s",)"
                 R"("temperature":0,"top_k":1,"top_p":1,"stop_sequences":[],"stream":false,)"
                 R"("metadata":{"user_id":"u"},"tools":[]})")
                .status,
            200);
  const Reply generated = Post(
      port_,
      "/api/generate",
      R"({"model":"test-model","prompt":"x","stream":false,"raw":false,"options":{"num_predict":2},)"
      R"("keep_alive":"5m","system":"","format":"","think":false})");
  EXPECT_EQ(generated.status, 200) << generated.body;
}

TEST_F(StrictRequestsTest, KnowsTheObjectsWithinABody) {
  StartStrict();
  for (const auto& [path, fields] : std::vector<std::pair<std::string, std::string>>{
           {"stream_options.usage", R"("stream":true,"stream_options":{"usage":true})"},
           {"response_format.schema", R"("response_format":{"type":"json_object","schema":{}})"},
           {"response_format.json_schema.shema",
            R"("response_format":{"type":"json_schema","json_schema":)"
            R"({"name":"n","schema":{"type":"object"},"shema":{}}})"},
           {"structured_outputs.regexp", R"("structured_outputs":{"regex":"a","regexp":"b"})"}}) {
    EXPECT_EQ(Refusal("/v1/chat/completions", ChatWith(fields))["param"], path);
  }
  const std::string good =
      R"("stream_options":null,"response_format":{"type":"json_schema","json_schema":{"name":"n",)"
      R"("description":"d","strict":true,"schema":{"type":"object","properties":{"max_token":)"
      R"({"type":"integer"}},"required":["max_token"],"additionalProperties":false}}},"max_tokens":3)";
  const Reply reply = Post(port_, "/v1/chat/completions", ChatWith(good));
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(Post(port_,
                 "/v1/chat/completions",
                 R"({"max_tokens":2,"messages":[{"role":"user","content":"hi","weight":1}]})")
                .status,
            200)
      << "messages may carry what they like";
}

TEST_F(StrictRequestsTest, UnknownFieldsAreIgnoredWithoutIt) {
  Start();
  EXPECT_EQ(Post(port_, "/v1/chat/completions", ChatWith(R"("max_token":5)")).status, 200);
}

}  // namespace
}  // namespace inferd::api
