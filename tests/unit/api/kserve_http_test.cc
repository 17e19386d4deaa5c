// SPDX-License-Identifier: Apache-2.0
// The Open Inference Protocol over HTTP, and the generate extension.
#include "api/kserve/v2_path.h"
#include "base/error.h"
#include "server_fixture.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace inferd::api {
namespace {

const std::string kInfer = "/v2/models/test-model/infer";
const std::string kOne =
    R"({"id":"r","inputs":[{"name":"text_input","shape":[1],"datatype":"BYTES","data":["a"]}]})";

class KserveHttpTest : public ServerTest {
 protected:
  void SetUp() override { Start(); }
  Json Good(const std::string& path, const std::string& body) {
    const Reply reply = Post(port_, path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }
  void ExpectError(const std::string& path, const std::string& body, int status) {
    const Reply reply = Post(port_, path, body);
    EXPECT_EQ(reply.status, status) << path << " " << body << " " << reply.body;
    const Json error = Json::parse(reply.body, nullptr, false);
    EXPECT_TRUE(error.is_object() && error.contains("error") && error["error"].is_string())
        << reply.body;
  }
};

TEST(V2Path, NamesMayHoldSlashesAndEscapes) {
  const V2Path plain = ParseV2Path("/v2/models/a/b/infer", "/v2/models/");
  EXPECT_EQ(plain.name, "a/b");
  EXPECT_EQ(plain.version, "");
  EXPECT_EQ(plain.action, "infer");
  const V2Path all = ParseV2Path("/v2/models/a%2Fb/versions/1/generate_stream", "/v2/models/");
  EXPECT_EQ(all.name, "a/b");
  EXPECT_EQ(all.version, "1");
  EXPECT_EQ(all.action, "generate_stream");
  const V2Path bare = ParseV2Path("/v2/models/a%2/versions/x", "/v2/models/");
  EXPECT_EQ(bare.name, "a%2");
  EXPECT_EQ(bare.version, "x");
  EXPECT_EQ(bare.action, "");
}

TEST_F(KserveHttpTest, InferTakesTextsAsJsonAndAsBinaryTensors) {
  Json answer = Good(kInfer, kOne);
  EXPECT_EQ(answer["model_name"], "test-model");
  EXPECT_EQ(answer["model_version"], "1");
  EXPECT_EQ(answer["id"], "r");
  EXPECT_EQ(answer["outputs"][0]["data"], Json::array({"Hello"}));
  EXPECT_EQ(answer["outputs"][0]["shape"], Json::array({1}));
  answer = Good("/v2/models/alias/versions/1/infer",
                R"({"parameters":{"max_tokens":2},"inputs":[{"name":"text_input","shape":[2,1],)"
                R"("datatype":"BYTES","data":[["a"],["b"]]}]})");
  EXPECT_EQ(answer["outputs"][0]["data"], Json::array({"He", "He"}));

  const std::string json = R"({"inputs":[{"name":"text_input","shape":[1],"datatype":"BYTES",)"
                           R"("parameters":{"binary_data_size":5}}]})";
  const std::string body = json + std::string("\x01\0\0\0a", 5);
  HttpClient client(port_);
  client.Send(PostBytes(
      kInfer, body, "Inference-Header-Content-Length: " + std::to_string(json.size()) + "\r\n"));
  const Reply reply = client.Read();
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(Json::parse(reply.body)["outputs"][0]["data"][0], "Hello");
  EXPECT_EQ(service_.last()->prompt, (std::vector<std::int32_t>{kBos, 'a'}));

  const Reply binary =
      Post(port_,
           kInfer,
           R"({"inputs":[{"name":"text_input","shape":[1],"datatype":"BYTES","data":["a"]}],)"
           R"("outputs":[{"name":"text_output","parameters":{"binary_data":true}}]})");
  ASSERT_EQ(binary.status, 200) << binary.body;
  const std::string raw("\x05\0\0\0Hello", 9);
  ASSERT_TRUE(binary.body.ends_with(raw));
  const std::size_t head = binary.body.size() - raw.size();
  EXPECT_TRUE(binary.Has("inference-header-content-length: " + std::to_string(head)));
  EXPECT_EQ(
      Json::parse(binary.body.substr(0, head))["outputs"][0]["parameters"]["binary_data_size"], 9);
}

TEST_F(KserveHttpTest, GenerateAnswersATextAndStreamsItAlike) {
  const std::string body =
      R"({"text_input":"a","parameters":{"temperature":0,"stop":["o"],"stream":false}})";
  const Json answer = Good("/v2/models/test-model/generate", body);
  EXPECT_EQ(answer["text_output"], "Hell");
  EXPECT_EQ(answer["finish_reason"], "stop");
  const Reply stream = Post(port_, "/v2/models/test-model/generate_stream", body);
  ASSERT_EQ(stream.status, 200);
  EXPECT_TRUE(stream.Has("content-type: text/event-stream"));
  std::string text;
  std::size_t at = 0;
  while (at < stream.body.size()) {
    const std::size_t end = stream.body.find("\n\n", at);
    ASSERT_NE(end, std::string::npos);
    ASSERT_EQ(stream.body.substr(at, 6), "data: ");
    const Json event = Json::parse(stream.body.substr(at + 6, end - at - 6));
    text += event["text_output"].get<std::string>();
    at = end + 2;
  }
  EXPECT_EQ(text, "Hell");
  const Json top = Good("/v2/models/test-model/generate",
                        R"({"text_input":"a","max_tokens":1,"exclude_input_in_output":false})");
  EXPECT_EQ(top["text_output"], "aH");
}

TEST_F(KserveHttpTest, WhatIsWrongIsRefusedInTheProtocolsForm) {
  ExpectError(kInfer, "{", 400);
  ExpectError(kInfer, "{}", 400);
  ExpectError(kInfer, R"({"inputs":[1]})", 400);
  ExpectError(kInfer, R"({"inputs":[{"name":"text_input","datatype":"BYTES"}]})", 400);
  ExpectError(kInfer,
              R"({"inputs":[{"name":"text_input","shape":[2],"datatype":"BYTES","data":["a"]}]})",
              400);
  ExpectError(kInfer,
              R"({"inputs":[{"name":"text_input","shape":[1],"datatype":"BYTES","data":[1]}]})",
              400);
  ExpectError(kInfer,
              R"({"inputs":[{"name":"text_input","shape":[1],"datatype":"BYTES",)"
              R"("parameters":{"binary_data_size":9}}]})",
              400);
  ExpectError("/v2/models/other/infer", kOne, 404);
  ExpectError("/v2/models/test-model/versions/2/infer", kOne, 404);
  ExpectError("/v2/models/test-model/train", kOne, 404);
  ExpectError("/v2/models/test-model/generate", R"({"text_input":1})", 400);
  ExpectError("/v2/models/test-model/generate", R"({"text_input":"a","temperature":-1})", 400);
  ExpectError("/v2/models/test-model/generate", R"({"text_input":"a","n":2})", 400);
  ExpectError("/v2/repository/models/test-model/unload", "", 400);
  service_.FailNextSubmit(ResourceExhausted("the queue is full"));
  ExpectError(kInfer, kOne, 429);
  service_.SetPhase(leader::Phase::kLoading);
  ExpectError(kInfer, kOne, 503);
  service_.SetPhase(leader::Phase::kReady);
  EXPECT_EQ(Good(kInfer, kOne)["outputs"][0]["data"][0], "Hello");
}

TEST_F(KserveHttpTest, ServerAndModelsTellOfThemselves) {
  EXPECT_EQ(Json::parse(Get(port_, "/v2").body)["name"], "inferd");
  EXPECT_EQ(Get(port_, "/v2/health/live").status, 200);
  EXPECT_EQ(Get(port_, "/v2/health/ready").status, 200);
  EXPECT_EQ(Get(port_, "/v2/models/test-model/ready").status, 200);
  EXPECT_EQ(Get(port_, "/v2/models/test-model/versions/1/ready").status, 200);
  EXPECT_EQ(Get(port_, "/v2/models/test-model/versions/2/ready").status, 404);
  const Json metadata = Json::parse(Get(port_, "/v2/models/test-model").body);
  EXPECT_EQ(metadata["inputs"][0]["name"], "text_input");
  EXPECT_EQ(metadata["outputs"][0]["name"], "text_output");
  EXPECT_EQ(Json::parse(Post(port_, "/v2/repository/index", "").body)[0]["state"], "READY");
  EXPECT_EQ(Post(port_, "/v2/repository/models/test-model/load", "").status, 200);
  service_.SetPhase(leader::Phase::kLoading);
  EXPECT_EQ(Get(port_, "/v2/health/live").status, 200);
  EXPECT_EQ(Get(port_, "/v2/health/ready").status, 503);
  EXPECT_EQ(Get(port_, "/v2/models/test-model/ready").status, 503);
  service_.SetStallMs(400'000);
  EXPECT_EQ(Get(port_, "/v2/health/live").status, 503);
}

}  // namespace
}  // namespace inferd::api
