// SPDX-License-Identifier: Apache-2.0
#include "leader/sequence_table.h"

#include <gtest/gtest.h>

namespace inferd::leader {
namespace {

class Sink : public EventSink {
 public:
  void Publish(std::span<OutputEvent> batch) override {
    ++batches;
    for (OutputEvent& event : batch) {
      events.push_back(std::move(event));
    }
  }
  std::vector<OutputEvent> events;
  int batches = 0;
};

GenerateRequest Request(Sink* sink, std::uint32_t slot, std::int32_t n) {
  GenerateRequest request;
  request.stream = {0, slot, 5};
  request.sink = sink;
  request.n = n;
  return request;
}

engine::TokenEvent Token(std::uint64_t id,
                         std::int32_t token,
                         engine::FinishReason finish = engine::FinishReason::kNone) {
  engine::TokenEvent event;
  event.id = id;
  event.token = token;
  event.finish = finish;
  return event;
}

TEST(SequenceTableTest, EventsOfAStepArriveInOneBatchPerSink) {
  Sink a;
  Sink b;
  SequenceTable table([](std::int64_t) {});
  const std::uint64_t first = table.Add(Request(&a, 1, 2), 10);
  const std::uint64_t second = table.Add(Request(&b, 2, 1), 10);
  std::vector<engine::TokenEvent> events{Token(first, 7), Token(second, 8), Token(first + 1, 9)};
  table.Take(events);
  EXPECT_TRUE(a.events.empty()) << "nothing goes out before Publish";
  table.Publish();
  EXPECT_EQ(a.batches, 1);
  ASSERT_EQ(a.events.size(), 2U);
  EXPECT_EQ(a.events[1].choice, 1);
  EXPECT_EQ(a.events[1].token->token, 9);
  ASSERT_EQ(b.events.size(), 1U);
  EXPECT_EQ(b.events[0].stream.slot, 2U);
}

TEST(SequenceTableTest, TheRequestEndsWithItsLastChoiceAndReturnsItsCost) {
  Sink sink;
  std::int64_t returned = 0;
  int ended = 0;
  SequenceTable table([&](std::int64_t cost) {
    returned += cost;
    ++ended;
  });
  const std::uint64_t first = table.Add(Request(&sink, 1, 2), 42);
  std::vector<engine::TokenEvent> events{Token(first, 1, engine::FinishReason::kStop)};
  table.Take(events);
  EXPECT_EQ(ended, 0);
  EXPECT_EQ(table.Find({0, 1, 5}, -1), std::vector<std::uint64_t>{first + 1});
  events = {Token(first + 1, 2, engine::FinishReason::kLength), Token(first, 3)};
  table.Take(events);
  table.Publish();
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(returned, 42);
  EXPECT_TRUE(table.empty());
  ASSERT_EQ(sink.events.size(), 2U) << "an event after the end was passed on";
  EXPECT_EQ(sink.events[0].finish, FinishReason::kStop);
  EXPECT_EQ(sink.events[0].stop_token, 1);
  EXPECT_EQ(sink.events[1].finish, FinishReason::kLength);
  EXPECT_TRUE(table.Find({0, 1, 5}, -1).empty());
}

TEST(SequenceTableTest, PromptLogprobsOfChunksArriveTogetherWithTheFirstToken) {
  Sink sink;
  SequenceTable table([](std::int64_t) {});
  const std::uint64_t id = table.Add(Request(&sink, 1, 1), 1);
  engine::TokenEvent chunk;
  chunk.id = id;
  chunk.prompt_logprobs.resize(3);
  std::vector<engine::TokenEvent> events{chunk};
  table.Take(events);
  table.Publish();
  EXPECT_TRUE(sink.events.empty());
  engine::TokenEvent last = Token(id, 4);
  last.prompt_logprobs.resize(2);
  events = {last};
  table.Take(events);
  table.Publish();
  ASSERT_EQ(sink.events.size(), 1U);
  EXPECT_EQ(sink.events[0].prompt_logprobs.size(), 5U);
}

TEST(SequenceTableTest, SiblingsWaitForTheEventThatCarriesThePromptsLogprobs) {
  Sink sink;
  int ended = 0;
  SequenceTable table([&](std::int64_t) { ++ended; });
  GenerateRequest request = Request(&sink, 1, 3);
  request.sampling.prompt_logprobs = 0;
  const std::uint64_t first = table.Add(request, 1);
  std::vector<engine::TokenEvent> events{Token(first + 1, 10),
                                         Token(first + 2, 20, engine::FinishReason::kStop)};
  table.Take(events);
  table.Fail(first + 1, Error(Code::kInternal, "lost"));
  table.Publish();
  EXPECT_TRUE(sink.events.empty());

  events = {Token(first, 1)};
  events[0].prompt_logprobs.resize(4);
  table.Take(events);
  table.Publish();
  ASSERT_EQ(sink.events.size(), 4U);
  EXPECT_EQ(sink.events[0].choice, 0);
  EXPECT_EQ(sink.events[0].prompt_logprobs.size(), 4U);
  EXPECT_EQ(sink.events[1].token->token, 10);
  EXPECT_EQ(sink.events[2].token->token, 20);
  EXPECT_EQ(sink.events[3].finish, FinishReason::kError);

  events = {Token(first, 2, engine::FinishReason::kLength)};
  table.Take(events);
  table.Publish();
  EXPECT_EQ(sink.events.size(), 5U);
  EXPECT_EQ(ended, 1);
}

TEST(SequenceTableTest, FailEndsWithTheError) {
  Sink sink;
  int ended = 0;
  SequenceTable table([&](std::int64_t) { ++ended; });
  const std::uint64_t id = table.Add(Request(&sink, 1, 1), 1);
  table.Fail(id, Error(Code::kUnavailable, "worker lost"));
  table.Fail(id, Error(Code::kUnavailable, "again"));
  table.Publish();
  ASSERT_EQ(sink.events.size(), 1U);
  EXPECT_EQ(sink.events[0].finish, FinishReason::kError);
  EXPECT_EQ(sink.events[0].error->message(), "worker lost");
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace inferd::leader
