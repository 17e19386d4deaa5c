// SPDX-License-Identifier: Apache-2.0
// Constrained rows in real batches: each token obeys its mask, free rows beside them are not
// touched, and neither layouts, preemption nor dead workers change a token.
#include "base/error.h"
#include "cluster/harness.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

namespace inferd::cluster {
namespace {

constexpr int kVocab = 256;
constexpr std::int32_t kEnd = 5;
constexpr int kTokens = 48;
constexpr int kStreams = 12;

/// A rule whose next step depends on all tokens before: allows about a third of the vocabulary,
/// until `length` tokens have come and only kEnd is left.
class HashRule : public leader::TokenConstraint {
 public:
  HashRule(std::int32_t length, std::int32_t fail_at) : length_(length), fail_at_(fail_at) {}

  Result<std::unique_ptr<TokenConstraint>> Clone() const override {
    return std::unique_ptr<TokenConstraint>(std::make_unique<HashRule>(length_, fail_at_));
  }
  Result<> FillMask(std::span<std::uint32_t> words) override {
    if (count_ == fail_at_) {
      return InvalidArgument("the rule breaks at token {}", count_);
    }
    std::fill(words.begin(), words.end(), 0);
    for (std::int32_t token = 0; token < kVocab; ++token) {
      if (Allows(token)) {
        words[static_cast<std::size_t>(token) / 32] |= 1U << (token % 32);
      }
    }
    return {};
  }
  Result<> Accept(std::int32_t token) override {
    if (!Allows(token)) {
      return InvalidArgument("token {} is not allowed at {}", token, count_);
    }
    ++count_;
    state_ = (state_ ^ static_cast<std::uint64_t>(token)) * 0x9E3779B97F4A7C15ULL;
    state_ ^= state_ >> 29;
    return {};
  }
  bool Allows(std::int32_t token) const {
    if (count_ >= length_) {
      return token == kEnd;
    }
    const std::uint64_t mixed =
        (state_ + static_cast<std::uint64_t>(token)) * 0xD1342543DE82EF95ULL;
    return token != kEnd && (mixed >> 40) % 3 == 0;
  }

 private:
  const std::int32_t length_, fail_at_;
  std::int32_t count_ = 0;
  std::uint64_t state_ = 1;
};

struct Case {
  std::string name;
  std::string model;
  spec::ParallelSpec parallel;
};

/// Even streams are constrained (if `with_rules`), odd ones free; half of each are sampled.
std::vector<std::uint32_t> SubmitMixed(Server& server, bool with_rules = true) {
  const auto prompts = RandomPrompts(kStreams, kVocab, 24, 21);
  std::vector<std::uint32_t> slots;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (i % 2 == 0 && !with_rules) {
      continue;
    }
    leader::GenerateRequest request;
    request.prompt = prompts[i];
    request.max_tokens = kTokens;
    request.sampling.temperature = i % 4 < 2 ? 0 : 1;
    request.sampling.seed = i;
    request.sampling.logprobs = 2;
    request.ignore_eos = true;  // of no effect under a rule
    if (i % 2 == 0) {
      const auto length = static_cast<std::int32_t>(i % 3 == 0 ? 20 : 1000);
      request.constraint = std::make_shared<HashRule>(length, -1);
    }
    slots.push_back(server.Submit(std::move(request)));
  }
  return slots;
}

std::vector<Answer> WaitAll(Server& server, const std::vector<std::uint32_t>& slots) {
  std::vector<Answer> answers;
  for (const std::uint32_t slot : slots) {
    answers.push_back(server.collector().Wait(slot));
    EXPECT_EQ(answers.back().error, "");
  }
  return answers;
}

void ExpectRulesHold(const std::vector<Answer>& answers) {
  for (std::size_t i = 0; i < answers.size(); i += 2) {
    const bool short_rule = i % 3 == 0;
    HashRule rule(short_rule ? 20 : 1000, -1);
    for (const std::int32_t token : answers[i].tokens) {
      ASSERT_TRUE(rule.Accept(token).ok()) << "stream " << i;
    }
    EXPECT_EQ(answers[i].finish,
              short_rule ? leader::FinishReason::kStop : leader::FinishReason::kLength);
    EXPECT_EQ(answers[i].tokens.size(), short_rule ? 21U : static_cast<std::size_t>(kTokens));
  }
}

void ExpectSame(const std::vector<Answer>& a, const std::vector<Answer>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].tokens, b[i].tokens) << "stream " << i;
    EXPECT_EQ(a[i].finish, b[i].finish) << "stream " << i;
    ASSERT_EQ(a[i].details.size(), b[i].details.size());
    for (std::size_t k = 0; k < a[i].details.size(); ++k) {
      EXPECT_EQ(a[i].details[k].logprob, b[i].details[k].logprob);
    }
  }
}

class ConstraintTest : public testing::TestWithParam<Case> {
 protected:
  static ServerOptions Options() {
    ServerOptions options;
    options.model = GetParam().model;
    options.parallel = GetParam().parallel;
    options.step_deadline_ms = 5'000;
    options.eos_ids = {kEnd};
    return options;
  }
};

TEST_P(ConstraintTest, RulesHoldAndFreeRowsAreNotTouched) {
  Server server(Options());
  ASSERT_NE(server.leader(), nullptr);
  const auto free_alone = WaitAll(server, SubmitMixed(server, false));
  const auto mixed = WaitAll(server, SubmitMixed(server));
  ExpectRulesHold(mixed);
  std::vector<Answer> free;
  for (std::size_t i = 1; i < mixed.size(); i += 2) {
    free.push_back(mixed[i]);
  }
  ExpectSame(free, free_alone);
  EXPECT_EQ(server.PagesInUseWhenIdle(), 0);
}

TEST_P(ConstraintTest, KilledWorkersChangeNoToken) {
  Server server(Options());
  ASSERT_NE(server.leader(), nullptr);
  const auto expected = WaitAll(server, SubmitMixed(server));
  const std::size_t num_workers = Server::WorkerPids().size();
  for (std::size_t victim = 0; victim < num_workers; ++victim) {
    const auto slots = SubmitMixed(server);
    server.collector().WaitForTokens(slots[0], 3 + victim * 7);
    ASSERT_EQ(::kill(Server::WorkerPids().front(), SIGKILL), 0);
    ExpectSame(WaitAll(server, slots), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         ConstraintTest,
                         testing::Values(Case{"one", "llama", Parallel(1, 1, 1)},
                                         Case{"tp2", "llama", Parallel(2, 1, 1)},
                                         Case{"pp2", "llama", Parallel(1, 2, 1)},
                                         Case{"ep2", "mixtral", Parallel(1, 1, 2)}),
                         [](const testing::TestParamInfo<Case>& c) { return c.param.name; });

TEST(ConstraintTest, LayoutsGiveTheSameTokens) {
  std::vector<Answer> expected;
  for (const auto& parallel : {Parallel(1, 1, 1), Parallel(2, 1, 1), Parallel(1, 2, 1)}) {
    ServerOptions options;
    options.parallel = parallel;
    options.eos_ids = {kEnd};
    Server server(options);
    ASSERT_NE(server.leader(), nullptr);
    const auto answers = WaitAll(server, SubmitMixed(server));
    if (expected.empty()) {
      expected = answers;
    }
    for (std::size_t i = 0; i < answers.size(); ++i) {
      EXPECT_EQ(answers[i].tokens, expected[i].tokens);
    }
  }
}

TEST(ConstraintTest, PreemptionChangesNoToken) {
  ServerOptions options;
  options.eos_ids = {kEnd};
  std::vector<Answer> expected;
  {
    Server roomy(options);
    ASSERT_NE(roomy.leader(), nullptr);
    expected = WaitAll(roomy, SubmitMixed(roomy));
  }
  options.kv_cache_bytes = 8 * 32768;  // pages for two or three of them
  Server server(options);
  ASSERT_NE(server.leader(), nullptr);
  ExpectSame(WaitAll(server, SubmitMixed(server)), expected);
  EXPECT_GT(server.leader()->stats()[0].preemptions, 0U);
}

TEST(ConstraintTest, ARuleThatBreaksEndsItsChoiceOnly) {
  ServerOptions options;
  options.eos_ids = {kEnd};
  Server server(options);
  ASSERT_NE(server.leader(), nullptr);
  const auto expected = server.Generate({{7, 8, 9}}, kTokens)[0].tokens;
  leader::GenerateRequest request;
  request.prompt = {1, 2, 3};
  request.max_tokens = kTokens;
  request.n = 2;
  request.constraint = std::make_shared<HashRule>(1000, 5);
  const std::uint32_t broken = server.Submit(std::move(request));
  EXPECT_EQ(server.Generate({{7, 8, 9}}, kTokens)[0].tokens, expected);
  for (const std::int32_t choice : {0, 1}) {
    const Answer answer = server.collector().Wait(broken, choice);
    EXPECT_EQ(answer.finish, leader::FinishReason::kError);
    EXPECT_EQ(answer.tokens.size(), 5U);
    EXPECT_NE(answer.error.find("the rule breaks at token 5"), std::string::npos) << answer.error;
  }
  EXPECT_EQ(server.PagesInUseWhenIdle(), 0);
}

TEST(ConstraintTest, CancelledAndSeveralChoices) {
  ServerOptions options;
  options.eos_ids = {kEnd};
  Server server(options);
  ASSERT_NE(server.leader(), nullptr);
  const auto make = [&](std::int32_t length) {
    leader::GenerateRequest request;
    request.prompt = {1, 2, 3};
    request.max_tokens = 80;
    request.n = 3;
    request.constraint = std::make_shared<HashRule>(length, -1);
    return request;
  };
  const std::uint32_t cancelled = server.Submit(make(1000));
  const std::uint32_t kept = server.Submit(make(15));
  server.collector().WaitForTokens(cancelled, 2);
  server.leader()->Cancel({0, cancelled, 0}, -1);
  for (const std::int32_t choice : {0, 1, 2}) {
    const Answer answer = server.collector().Wait(kept, choice);
    EXPECT_EQ(answer.finish, leader::FinishReason::kStop) << answer.error;
    EXPECT_EQ(answer.tokens.size(), 16U);
    EXPECT_EQ(answer.tokens.back(), kEnd);
  }
  EXPECT_EQ(server.PagesInUseWhenIdle(), 0);
}

}  // namespace
}  // namespace inferd::cluster
