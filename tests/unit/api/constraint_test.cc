// SPDX-License-Identifier: Apache-2.0
#include "api/core/constraint.h"

#include "unit/api/byte_model.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace inferd::api
