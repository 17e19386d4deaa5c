// SPDX-License-Identifier: Apache-2.0
// The engine seen from the front end: cancels free pages, the queue is bounded, prefixes are
// reused, choices share a prompt, batches do not change answers, models that cannot load are
// refused.
#include "cluster/harness.h"
#include "store/model.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace inferd::cluster {
namespace {

constexpr int kVocab = 256;

TEST(ServingTest, CancelFreesPagesAndEndsTheStream) {
  Server server(ServerOptions{});
  ASSERT_NE(server.leader(), nullptr);
  std::vector<std::uint32_t> slots;
  for (const auto& prompt : RandomPrompts(8, kVocab, 30, 3)) {
    slots.push_back(server.Submit(prompt, 80));
  }
  server.collector().WaitForTokens(slots[0], 2);
  for (const std::uint32_t slot : slots) {
    server.leader()->Cancel({0, slot, 0}, -1);
  }
  for (const std::uint32_t slot : slots) {
    const Answer answer = server.collector().Wait(slot);
    EXPECT_TRUE(answer.finish == leader::FinishReason::kCancelled ||
                answer.finish == leader::FinishReason::kLength);
  }
  EXPECT_EQ(server.PagesInUseWhenIdle(), 0);
}

TEST(ServingTest, FullQueueIsRefusedAtOnce) {
  ServerOptions options;
  options.max_num_seqs = 2;
  options.max_waiting = 3;
  Server server(options);
  ASSERT_NE(server.leader(), nullptr);
  std::vector<std::uint32_t> slots;
  Code refusal{};
  for (std::uint32_t i = 0; i < 50; ++i) {
    leader::GenerateRequest request;
    request.stream = {0, 1000 + i, 0};
    request.sink = &server.collector();
    request.prompt = {1, 2, 3, 4};
    request.max_tokens = 60;
    request.sampling.temperature = 0;
    if (Result<> submitted = server.leader()->Submit(std::move(request), nullptr); submitted.ok()) {
      slots.push_back(1000 + i);
    } else {
      refusal = submitted.error().code();
    }
  }
  EXPECT_EQ(refusal, Code::kResourceExhausted);
  EXPECT_GE(slots.size(), 5U);
  for (const std::uint32_t slot : slots) {
    EXPECT_EQ(server.collector().Wait(slot).finish, leader::FinishReason::kLength);
  }
  EXPECT_EQ(server.PagesInUseWhenIdle(), 0);
}

TEST(ServingTest, PrefixHitsBatchesAndChunksChangeNoToken) {
  ServerOptions small;
  small.max_num_batched_tokens = 16;  // Prompts run in chunks.
  const auto prompts = RandomPrompts(12, kVocab, 70, 5);
  std::vector<std::vector<std::int32_t>> alone;
  {
    ServerOptions no_cache;
    no_cache.prefix_cache = false;
    Server server(no_cache);
    ASSERT_NE(server.leader(), nullptr);
    for (const auto& prompt : prompts) {
      alone.push_back(server.Generate({prompt}, 24)[0].tokens);
    }
  }
  Server server(small);
  ASSERT_NE(server.leader(), nullptr);
  bool hit = false;
  for (int round = 0; round < 2; ++round) {
    const std::vector<Answer> answers = server.Generate(prompts, 24);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(answers[i].tokens, alone[i]) << "prompt " << i << " round " << round;
      hit = hit || answers[i].cached_tokens > 0;
    }
  }
  EXPECT_TRUE(hit) << "no prompt was served from the prefix cache";
}

TEST(ServingTest, ChoicesShareThePromptAndDifferBySeed) {
  Server server(ServerOptions{});
  ASSERT_NE(server.leader(), nullptr);
  leader::GenerateRequest request;
  request.prompt = RandomPrompts(1, kVocab, 60, 9)[0];
  request.prompt.resize(64, 7);
  request.n = 4;
  request.max_tokens = 12;
  request.sampling.temperature = 2;
  request.sampling.seed = 42;
  const std::uint32_t slot = server.Submit(request);
  std::vector<std::vector<std::int32_t>> choices;
  int cached = 0;
  for (int choice = 0; choice < 4; ++choice) {
    const Answer answer = server.collector().Wait(slot, choice);
    EXPECT_EQ(answer.tokens.size(), 12U);
    choices.push_back(answer.tokens);
    cached += answer.cached_tokens > 0 ? 1 : 0;
  }
  EXPECT_NE(choices[0], choices[1]);
  EXPECT_GE(cached, 3);
  // The same seeds give the same choices again.
  const std::uint32_t again = server.Submit(request);
  for (int choice = 0; choice < 4; ++choice) {
    EXPECT_EQ(server.collector().Wait(again, choice).tokens,
              choices[static_cast<std::size_t>(choice)]);
  }
}

TEST(ServingTest, TooLongPromptIsRefusedWithBothLengths) {
  Server server(ServerOptions{});
  ASSERT_NE(server.leader(), nullptr);
  leader::GenerateRequest request;
  request.sink = &server.collector();
  request.prompt.assign(100'000, 1);
  request.max_tokens = 1;
  const Result<> submitted = server.leader()->Submit(request, nullptr);
  ASSERT_FALSE(submitted.ok());
  EXPECT_EQ(submitted.error().code(), Code::kInvalidArgument);
  EXPECT_NE(submitted.error().message().find("100000"), std::string::npos);
  EXPECT_NE(submitted.error().message().find(std::to_string(server.leader()->max_model_len())),
            std::string::npos);
}

TEST(ServingTest, AModelThatCannotLoadFailsTheStart) {
  Result<store::Model> model = store::OpenModel(std::string(INFERD_TEST_DATA) + "/llama");
  ASSERT_TRUE(model.ok());
  leader::LeaderOptions options;
  options.model = model->spec;
  options.model_path = "/nonexistent/model";
  options.cut = model->cut;
  options.kv_cache_bytes = 1 << 20;
  options.weight_bytes = 400'000;
  auto started = leader::Leader::Start(options);
  ASSERT_TRUE(started.ok()) << started.error().message();
  const Result<> ready =
      (*started)->WaitUntilReady([](const leader::LoadProgress&) {}, [] { return false; });
  ASSERT_FALSE(ready.ok());
  EXPECT_NE(ready.error().message().find("/nonexistent/model"), std::string::npos)
      << ready.error().message();
}

}  // namespace
}  // namespace inferd::cluster
