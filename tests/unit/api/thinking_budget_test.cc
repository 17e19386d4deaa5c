// SPDX-License-Identifier: Apache-2.0
// The thinking budget against a plain reading of the output: how many tokens the model may reason,
// what is forced then, and that a fresh constraint which is told the same tokens goes on the same.
#include "api/chat/thinking_budget.h"

#include "fake_service.h"
#include "text/dialect_parser.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace inferd::api {
namespace {

constexpr std::string_view kEnd = "</think>";
constexpr std::int32_t kAny = -1;

class ThinkingBudgetTest : public testing::Test {
 protected:
  void Speak(const char* reasoning, std::string_view prompt) {
    const auto table = text::DialectTable::Load();
    ASSERT_TRUE(table.ok());
    const auto dialect = table->Select("", "none", reasoning);
    ASSERT_TRUE(dialect.ok()) << dialect.error().message();
    model_.dialect = *dialect;
    model_.marker_tokens = text::MarkerTokens(*model_.tokenizer, model_.dialect);
    spec_.parsers = text::MakeParsers({.dialect = model_.dialect}, prompt);
    spec_.marker_tokens = model_.marker_tokens;
    spec_.tokenizer = model_.tokenizer;
  }

  Result<> Limit(const ChatRequest& chat) {
    request_ = {};
    request_.ignore_eos = ignore_eos_;
    request_.sampling.allowed_tokens = allowed_;
    const ServerContext context{.model = model_,
                                .service = service_,
                                .metrics = metrics_,
                                .responses = nullptr,
                                .draining = false,
                                .arrived_ns = 1};
    return LimitReasoning(context, chat, spec_, &request_);
  }

  std::unique_ptr<leader::TokenConstraint> Start(std::int64_t budget) {
    ChatRequest chat;
    chat.thinking_budget = budget;
    EXPECT_TRUE(Limit(chat).ok());
    EXPECT_NE(request_.constraint, nullptr);
    auto clone = request_.constraint->Clone();
    EXPECT_TRUE(clone.ok());
    return *std::move(clone);
  }

  static std::vector<std::uint32_t> Mask(leader::TokenConstraint* constraint) {
    std::vector<std::uint32_t> words((kVocab + 31) / 32);
    EXPECT_TRUE(constraint->FillMask(words).ok());
    return words;
  }
  static bool Allows(leader::TokenConstraint* constraint, std::int32_t token) {
    return (Mask(constraint)[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1) != 0;
  }
  /// The only token that may come; kAny: there are several.
  static std::int32_t Forced(leader::TokenConstraint* constraint) {
    std::int32_t only = kAny;
    int count = 0;
    for (std::int32_t token = 0; token < kVocab; ++token) {
      if (Allows(constraint, token)) {
        only = token;
        ++count;
      }
    }
    EXPECT_GT(count, 0);
    return count == 1 ? only : kAny;
  }

  ServedModel model_ = *TestModel();
  FakeInferenceService service_;
  Metrics metrics_;
  GenerationSpec spec_;
  leader::GenerateRequest request_;
  bool ignore_eos_ = false;
  std::vector<std::int32_t> allowed_;
};

TEST_F(ThinkingBudgetTest, TheEndIsForcedAtTheBudgetAndNotBefore) {
  Speak("think", "<|assistant|><think>\n");
  const auto constraint = Start(5);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Forced(constraint.get()), kAny) << i;
    ASSERT_TRUE(constraint->Accept('x').ok());
  }
  for (const char c : kEnd) {
    EXPECT_EQ(Forced(constraint.get()), c);
    ASSERT_TRUE(constraint->Accept(c).ok());
  }
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(Forced(constraint.get()), kAny) << "the answer is free";
    EXPECT_TRUE(Allows(constraint.get(), kEos));
    ASSERT_TRUE(constraint->Accept('y').ok());
  }
}

TEST_F(ThinkingBudgetTest, AModelThatEndsByItselfIsLeftAlone) {
  Speak("think", "<|assistant|>");
  const auto constraint = Start(10);
  for (const char c : std::string("<think>ab</think>then a long answer that is no reasoning")) {
    EXPECT_EQ(Forced(constraint.get()), kAny) << c;
    ASSERT_TRUE(constraint->Accept(c).ok());
  }
}

TEST_F(ThinkingBudgetTest, ZeroForcesTheEndAtOnce) {
  Speak("think", "<think>");
  EXPECT_EQ(Forced(Start(0).get()), '<');
  Speak("think", "");
  const auto later = Start(0);
  for (const char c : std::string("<think>")) {
    EXPECT_EQ(Forced(later.get()), kAny);
    ASSERT_TRUE(later->Accept(c).ok());
  }
  EXPECT_EQ(Forced(later.get()), '<');
}

TEST_F(ThinkingBudgetTest, AllowedTokensDoNotKeepTheEndOut) {
  Speak("think", "<think>");
  allowed_ = {'a', kEos};
  const auto constraint = Start(1);
  EXPECT_TRUE(Allows(constraint.get(), 'a'));
  EXPECT_FALSE(Allows(constraint.get(), 'b'));
  ASSERT_TRUE(constraint->Accept('a').ok());
  for (const char c : kEnd) {
    EXPECT_EQ(Forced(constraint.get()), c);
    ASSERT_TRUE(constraint->Accept(c).ok());
  }
  EXPECT_FALSE(Allows(constraint.get(), 'b'));
  EXPECT_TRUE(Allows(constraint.get(), kEos));
}

TEST_F(ThinkingBudgetTest, IgnoreEosIsKept) {
  service_.SetEosIds({kEos});
  Speak("think", "<think>");
  ignore_eos_ = true;
  EXPECT_FALSE(Allows(Start(9).get(), kEos));
  ignore_eos_ = false;
  EXPECT_TRUE(Allows(Start(9).get(), kEos));
  // Also where few tokens are allowed, unless nothing else is.
  allowed_ = {'a', kEos};
  EXPECT_TRUE(Allows(Start(9).get(), kEos));
  ignore_eos_ = true;
  EXPECT_FALSE(Allows(Start(9).get(), kEos));
  EXPECT_TRUE(Allows(Start(9).get(), 'a'));
  allowed_ = {kEos};
  EXPECT_TRUE(Allows(Start(9).get(), kEos));
}

TEST_F(ThinkingBudgetTest, EffortIsABudgetUnlessTheTemplateKnowsIt) {
  Speak("think", "<think>");
  ChatRequest chat;
  chat.reasoning_effort = "low";
  ASSERT_TRUE(Limit(chat).ok());
  EXPECT_NE(request_.constraint, nullptr);
  model_.template_knows_effort = true;
  ASSERT_TRUE(Limit(chat).ok());
  EXPECT_EQ(request_.constraint, nullptr);
  model_.template_knows_effort = false;
  chat.reasoning_effort = "high";
  ASSERT_TRUE(Limit(chat).ok());
  EXPECT_EQ(request_.constraint, nullptr);
  EXPECT_LT(*BudgetOfEffort("none"), *BudgetOfEffort("minimal"));
  EXPECT_LT(*BudgetOfEffort("minimal"), *BudgetOfEffort("low"));
  EXPECT_LT(*BudgetOfEffort("low"), *BudgetOfEffort("medium"));
  // Without reasoning there is nothing to limit.
  Speak("none", "");
  chat.thinking_budget = 1;
  ASSERT_TRUE(Limit(chat).ok());
  EXPECT_EQ(request_.constraint, nullptr);
}

TEST_F(ThinkingBudgetTest, ChannelsEndInTheFinalOne) {
  Speak("openai_gptoss", "<|start|>assistant");
  const auto constraint = Start(3);
  for (const char c : std::string("<|channel|>analysis<|message|>abc")) {
    EXPECT_EQ(Forced(constraint.get()), kAny) << c;
    ASSERT_TRUE(constraint->Accept(c).ok());
  }
  std::string forced;
  for (std::int32_t token = Forced(constraint.get()); token != kAny;
       token = Forced(constraint.get())) {
    forced += static_cast<char>(token);
    ASSERT_TRUE(constraint->Accept(token).ok());
    ASSERT_LT(forced.size(), 100U);
  }
  EXPECT_EQ(forced, "<|end|><|start|>assistant<|channel|>final<|message|>");
}

// What a client counts: tokens before the one that completes the end marker, of a reply that begins
// in reasoning.
std::int64_t ReasonedIn(const std::string& reply) {
  const std::size_t end = reply.find(kEnd);
  return static_cast<std::int64_t>(end == std::string::npos ? reply.size() : end);
}

TEST_F(ThinkingBudgetTest, RandomOutputsStayInBudgetAndReplaysGoOnTheSame) {
  Speak("think", "<think>");
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    const auto budget = static_cast<std::int64_t>(random() % 20);
    const auto constraint = Start(budget);
    std::string reply;
    const std::string likely = "</think>ab";
    for (int i = 0; i < 60; ++i) {
      std::int32_t token = Forced(constraint.get());
      if (token == kAny) {
        token = likely[static_cast<std::size_t>(random() % likely.size())];
      }
      reply += static_cast<char>(token);
      ASSERT_TRUE(constraint->Accept(token).ok());
      if (random() % 10 == 0) {
        auto replayed = request_.constraint->Clone();
        ASSERT_TRUE(replayed.ok());
        for (const char c : reply) {
          ASSERT_TRUE((*replayed)->Accept(c).ok());
        }
        ASSERT_EQ(Mask(replayed->get()), Mask(constraint.get())) << reply;
      }
    }
    EXPECT_NE(reply.find(kEnd), std::string::npos) << reply;
    EXPECT_LE(ReasonedIn(reply), budget) << reply;
  }
}

}  // namespace
}  // namespace inferd::api
