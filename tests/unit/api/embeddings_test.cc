// SPDX-License-Identifier: Apache-2.0
// /v1/embeddings over loopback, with an engine whose every embedding is (3, 0, -4, 0).
#include "api/openai/embedding_format.h"
#include "api/openai/score_format.h"
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

TEST_F(EmbeddingsTest, ScoresPairsAndRanksDocuments) {
  Start();
  const Reply scored = Post(port_, "/v1/score", R"({"text_1":"a","text_2":["b","c"]})");
  ASSERT_EQ(scored.status, 200) << scored.body;
  const Json scores = Json::parse(scored.body);
  ASSERT_EQ(scores["data"].size(), 2U);
  EXPECT_EQ(scores["data"][1]["index"], 1);
  EXPECT_NEAR(scores["data"][1]["score"].get<double>(), 1, 1e-12) << "all are alike here";
  const Reply ranked =
      Post(port_, "/v1/rerank", R"({"query":"a","documents":["b",{"text":"c"},"d"],"top_n":2})");
  ASSERT_EQ(ranked.status, 200) << ranked.body;
  const Json rank = Json::parse(ranked.body);
  ASSERT_EQ(rank["results"].size(), 2U);
  EXPECT_EQ(rank["results"][1]["index"], 1) << "equal ones keep their order";
  EXPECT_EQ(rank["results"][1]["document"]["text"], "c");
  const Reply all = Post(port_, "/rerank", R"({"query":"a","documents":["b","c","d"]})");
  EXPECT_EQ(Json::parse(all.body)["results"].size(), 3U) << all.body;
  const auto param = [&](const std::string& path, const std::string& body) {
    return Json::parse(Post(port_, path, body).body)["error"].value("param", "");
  };
  EXPECT_EQ(param("/v1/score", R"({"text_1":["a","b"],"text_2":["c"]})"), "text_2");
  EXPECT_EQ(param("/v1/rerank", R"({"documents":["c"]})"), "query");
  EXPECT_EQ(param("/v1/rerank", R"({"query":"a","documents":[]})"), "documents");
}

TEST(RerankFormat, BestComesFirst) {
  const std::vector<float> query{1, 0};
  const std::vector<float> far{0, 1};
  const std::vector<float> near{1, 0.1F};
  std::vector<ReplyPiece> choices(3);
  choices[0].embedding = query;
  choices[1].embedding = far;
  choices[2].embedding = near;
  std::string out;
  RerankFormat("m", 10, {"far", "near"}).AppendFull(choices, {}, &out);
  const Json answer = Json::parse(out);
  EXPECT_EQ(answer["results"][0]["document"]["text"], "near");
  EXPECT_EQ(answer["results"][1]["index"], 0);
}

TEST(EmbeddingFormat, AVectorOfZerosStaysOne) {
  const std::vector<float> zeros(3, 0.0F);
  EXPECT_EQ(NormalizedEmbedding(zeros, 0), zeros);
}

}  // namespace
}  // namespace inferd::api
