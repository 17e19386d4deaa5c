// SPDX-License-Identifier: Apache-2.0
#include "api/core/constraint.h"

#include "api/core/constraint_wraps.h"
#include "unit/api/byte_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace inferd::api {
namespace {

class ConstraintTest : public testing::Test {
 protected:
  std::unique_ptr<leader::TokenConstraint> Start(ConstraintStart start) {
    auto grammar = model_->grammars->Get(text::GrammarKind::kRegex, "ab");
    EXPECT_TRUE(grammar.ok());
    auto constraint = MakeConstraint(*grammar, model_->tokenizer, std::move(start))->Clone();
    EXPECT_TRUE(constraint.ok());
    return *std::move(constraint);
  }
  static bool Allows(leader::TokenConstraint* constraint, std::int32_t token) {
    std::vector<std::uint32_t> words((kVocab + 31) / 32);
    EXPECT_TRUE(constraint->FillMask(words).ok());
    return (words[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1) != 0;
  }

  std::shared_ptr<const ServedModel> model_ = TestModel();
};

TEST_F(ConstraintTest, HoldsAtOnceAndEndsWithAnEndToken) {
  const auto constraint = Start({});
  EXPECT_TRUE(Allows(constraint.get(), 'a'));
  EXPECT_FALSE(Allows(constraint.get(), 'b'));
  EXPECT_FALSE(Allows(constraint.get(), kEos));
  EXPECT_FALSE(constraint->Accept('b').ok());
  ASSERT_TRUE(constraint->Accept('a').ok());
  ASSERT_TRUE(constraint->Accept('b').ok());
  EXPECT_TRUE(Allows(constraint.get(), kEos));
  EXPECT_FALSE(Allows(constraint.get(), 'a'));
}

TEST_F(ConstraintTest, AllowedTokensAndAGrammarHoldTogether) {
  const auto grammar = model_->grammars->Get(text::GrammarKind::kRegex, "[abc]+");
  ASSERT_TRUE(grammar.ok());
  leader::GenerateRequest request;
  request.sampling.allowed_tokens = {'b', 'z'};
  request.constraint = MakeConstraint(*grammar, model_->tokenizer, {});
  const std::vector<std::int32_t> ends{kEos};
  ConstrainToAllowed(ends, &request);
  EXPECT_TRUE(request.sampling.allowed_tokens.empty());
  auto clone = request.constraint->Clone();
  ASSERT_TRUE(clone.ok());
  for (const std::int32_t token : std::vector<std::int32_t>{'a', 'c', 'z', kEos}) {
    EXPECT_FALSE(Allows(clone->get(), token)) << token;
  }
  EXPECT_TRUE(Allows(clone->get(), 'b'));
  ASSERT_TRUE((*clone)->Accept('b').ok());
  EXPECT_TRUE(Allows(clone->get(), kEos)) << "where the output may end it can";
  EXPECT_FALSE(Allows(clone->get(), 'a'));
}

TEST_F(ConstraintTest, NothingInCommonIsAnError) {
  const auto grammar = model_->grammars->Get(text::GrammarKind::kRegex, "ab");
  ASSERT_TRUE(grammar.ok());
  leader::GenerateRequest request;
  request.sampling.allowed_tokens = {'b'};
  request.constraint = MakeConstraint(*grammar, model_->tokenizer, {});
  ConstrainToAllowed({}, &request);
  auto clone = request.constraint->Clone();
  ASSERT_TRUE(clone.ok());
  std::vector<std::uint32_t> words((kVocab + 31) / 32);
  const auto filled = (*clone)->FillMask(words);
  ASSERT_FALSE(filled.ok());
  EXPECT_NE(filled.error().message().find("allowed_token_ids"), std::string::npos);
}

TEST_F(ConstraintTest, BeginsBehindAToken) {
  const auto constraint = Start({.after_token = kUser, .after_text = ""});
  for (const std::int32_t token : {'x', 'a', '}'}) {
    EXPECT_TRUE(Allows(constraint.get(), 'z'));
    ASSERT_TRUE(constraint->Accept(token).ok());
  }
  ASSERT_TRUE(constraint->Accept(kUser).ok());
  EXPECT_TRUE(Allows(constraint.get(), 'a'));
  EXPECT_FALSE(Allows(constraint.get(), 'z'));
}

TEST_F(ConstraintTest, BeginsBehindATextOverSeveralTokens) {
  const auto constraint = Start({.after_token = std::nullopt, .after_text = "</t>"});
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(constraint->Accept('x').ok());
  }
  for (const char c : std::string("</</t>")) {
    EXPECT_TRUE(Allows(constraint.get(), 'z'));
    ASSERT_TRUE(constraint->Accept(c).ok());
  }
  EXPECT_TRUE(Allows(constraint.get(), 'a'));
  EXPECT_FALSE(Allows(constraint.get(), 'z'));
}

TEST_F(ConstraintTest, WhatAMarkersTokenSaysBehindItBelongsToTheGrammar) {
  text::Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "gpt-2";
  const auto add = [&](const std::string& token, text::TokenType type) {
    vocabulary.tokens.push_back(token);
    vocabulary.types.push_back(static_cast<std::int32_t>(type));
  };
  for (int byte = 0; byte < 256; ++byte) {
    add(SpellByte(byte), text::TokenType::kNormal);
  }
  add("</s>", text::TokenType::kControl);
  vocabulary.eos_id = 256;
  const std::int32_t first = 257;
  const std::vector<std::string> tokens = {
      "t>", "t>a", "t>ab", "t>b", ">a", ">abc", "</t>a", "</t>x"};
  for (const std::string& token : tokens) {
    add(token, text::TokenType::kNormal);
  }
  vocabulary.tokens.emplace_back("ow");
  vocabulary.types.push_back(static_cast<std::int32_t>(text::TokenType::kNormal));
  vocabulary.merges = {"o w"};
  const auto tokenizer = text::Tokenizer::FromVocab(vocabulary);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message();
  text::GrammarCache cache(*tokenizer, {256});
  const auto grammar = cache.Get(text::GrammarKind::kRegex, "ab");
  ASSERT_TRUE(grammar.ok());
  const auto prototype =
      MakeConstraint(*grammar, *tokenizer, {.after_token = std::nullopt, .after_text = "</t>"});
  // Said before, the token, and what may follow; empty: the token may not come there.
  const struct {
    std::string before;
    std::string token;
    std::string next;
  } kCases[] = {{"x</", "t>", "a"},
                {"x</", "t>a", "b"},
                {"x</", "t>b", ""},
                {"x<", "t>b", "z"},
                {"</t", ">a", "b"},
                {"</t", ">abc", ""},
                {"</", ">abc", "z"},
                {"", "</t>a", "b"},
                {"</", "</t>a", "b"},
                {"<", "</t>x", ""}};
  for (const auto& [before, token, next] : kCases) {
    SCOPED_TRACE(before + " " + token);
    const auto constraint = *prototype->Clone();
    for (const char c : before) {
      ASSERT_TRUE(constraint->Accept(c).ok());
    }
    std::vector<std::uint32_t> words((vocabulary.tokens.size() + 31) / 32);
    const auto allows = [&](std::int32_t id) {
      EXPECT_TRUE(constraint->FillMask(words).ok());
      return (words[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1) != 0;
    };
    const auto id =
        first + static_cast<std::int32_t>(std::ranges::find(tokens, token) - tokens.begin());
    EXPECT_EQ(allows(id), !next.empty());
    EXPECT_EQ(constraint->Accept(id).ok(), !next.empty());
    if (!next.empty()) {
      EXPECT_TRUE(allows(next[0]));
      EXPECT_EQ(allows('y'), next == "z");
    }
  }
}

}  // namespace
}  // namespace inferd::api
