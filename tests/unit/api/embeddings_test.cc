// SPDX-License-Identifier: Apache-2.0
// /v1/embeddings over loopback, with an engine whose every embedding is (3, 0, -4, 0).
#include "api/openai/embedding_format.h"
#include "server_fixture.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace inferd::api {
namespace {

class EmbeddingsTest : public ServerTest {
 protected:
  Json Ask(const std::string& fields) {
    const Reply reply = Post(port_, "/v1/embeddings", "{" + fields + "}");
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }
  std::string RefusedParam(const std::string& fields) {
    const Reply reply = Post(port_, "/v1/embeddings", "{" + fields + "}");
    EXPECT_EQ(reply.status, 400) << reply.body;
    return Json::parse(reply.body)["error"].value("param", "");
  }
};

TEST_F(EmbeddingsTest, VectorsHaveLengthOneAndComeInOrder) {
  Start();
  const Json answer = Ask(R"("model":"test-model","input":["ab","c",""])"
                          ",\"user\":\"me\"");
  EXPECT_EQ(answer["object"], "list");
  EXPECT_EQ(answer["model"], "test-model");
  ASSERT_EQ(answer["data"].size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(answer["data"][i]["index"], i);
    EXPECT_EQ(answer["data"][i]["object"], "embedding");
    const auto values = answer["data"][i]["embedding"].get<std::vector<float>>();
    EXPECT_EQ(values, (std::vector<float>{0.6F, 0, -0.8F, 0}));
  }
  // Each input begins with BOS.
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(answer["usage"]["total_tokens"], 6);
}

TEST_F(EmbeddingsTest, Base64AndFewerDimensions) {
  Start();
  const Json encoded = Ask(R"("input":[65,66],"encoding_format":"base64")");
  // 0.6f 0f -0.8f 0f, little-endian.
  EXPECT_EQ(encoded["data"][0]["embedding"], "mpkZPwAAAADNzEy/AAAAAA==");
  const Json cut = Ask(R"("input":"ab","dimensions":2)");
  EXPECT_EQ(cut["data"][0]["embedding"], (std::vector<float>{1, 0}));
}

TEST_F(EmbeddingsTest, RefusesByName) {
  Start();
  EXPECT_EQ(RefusedParam(R"("model":"test-model")"), "input");
  EXPECT_EQ(RefusedParam(R"("input":{"a":1})"), "input");
  EXPECT_EQ(RefusedParam(R"("input":["a",[1]])"), "input[1]");
  EXPECT_EQ(RefusedParam(R"("input":"a","encoding_format":"hex")"), "encoding_format");
  EXPECT_EQ(RefusedParam(R"("input":"a","dimensions":0)"), "dimensions");
  EXPECT_EQ(RefusedParam(R"("input":"a","dimensions":100000)"), "dimensions");
}

TEST(EmbeddingFormat, AVectorOfZerosStaysOne) {
  const std::vector<float> zeros(3, 0.0F);
  EXPECT_EQ(NormalizedEmbedding(zeros, 0), zeros);
}

}  // namespace
}  // namespace inferd::api
