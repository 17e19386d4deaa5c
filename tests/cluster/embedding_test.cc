// SPDX-License-Identifier: Apache-2.0
// Embeddings: against transformers, the same bits in every layout, beside sequences that generate,
// after a prefix hit, and with no page left in use.
#include "base/file.h"
#include "cluster/harness.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <string>
#include <vector>

namespace inferd::cluster {
namespace {

using Json = nlohmann::json;

Json Reference(const std::string& model) {
  const auto text = base::ReadFile(std::string(INFERD_TEST_DATA) + "/embeddings.json", 1 << 20);
  return text.ok() ? Json::parse(*text)[model] : Json();
}

std::vector<float> Embed(Server& server, std::uint32_t slot, const Json& reference) {
  leader::GenerateRequest request;
  request.stream = {0, slot, 0};
  request.sink = &server.collector();
  request.prompt = reference["ids"].get<std::vector<std::int32_t>>();
  request.embed = true;
  const Result<> submitted = server.leader()->Submit(std::move(request), nullptr);
  EXPECT_TRUE(submitted.ok()) << submitted.error().message();
  const Answer answer = server.collector().Wait(slot);
  EXPECT_EQ(answer.finish, leader::FinishReason::kLength) << answer.error;
  EXPECT_TRUE(answer.tokens.empty());
  return answer.embedding;
}

class EmbeddingTest : public testing::TestWithParam<std::string> {};

TEST_P(EmbeddingTest, EqualsTransformersInEveryLayout) {
  const Json reference = Reference(GetParam());
  ASSERT_TRUE(reference.contains("embedding"));
  std::vector<float> alone;
  for (const auto& parallel :
       {Parallel(1, 1, 1), Parallel(2, 1, 1), Parallel(1, 2, 1), Parallel(2, 2, 1)}) {
    ServerOptions options;
    options.model = GetParam();
    options.parallel = parallel;
    options.max_num_batched_tokens = 24;  // the prompt comes in chunks
    Server server(options);
    ASSERT_NE(server.leader(), nullptr);
    const auto busy = server.Submit(reference["ids"].get<std::vector<std::int32_t>>(), 12);
    const auto first = Embed(server, 5000, reference);
    const auto again = Embed(server, 5001, reference);
    EXPECT_EQ(first, again) << "the second has its prefix from the cache";
    alone = alone.empty() ? first : alone;
    EXPECT_EQ(first, alone) << "tp " << parallel.tp << " pp " << parallel.pp;
    server.collector().Wait(busy);
    EXPECT_EQ(server.PagesInUseWhenIdle(), 0);
  }
  ASSERT_EQ(alone.size(), reference["embedding"].size());
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_NEAR(alone[i], reference["embedding"][i].get<float>(), 2e-2F) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EmbeddingTest, testing::Values("llama", "qwen3", "gemma3"));

}  // namespace
}  // namespace inferd::cluster
