// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace inferd::text {
namespace {

using ::testing::HasSubstr;

TEST(TokenizerConfigTest, TokensAsStringsOrObjects) {
  const auto config = ParseTokenizerConfig(
      R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "pad_token": null, "chat_template": "x"})");
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_EQ(config->bos_token, "<s>");
  EXPECT_EQ(config->eos_token, "</s>");
  EXPECT_EQ(config->pad_token, std::nullopt);
  EXPECT_EQ(config->unk_token, std::nullopt);
  EXPECT_EQ(config->chat_template, "x");
}

TEST(TokenizerConfigTest, NamedTemplates) {
  const auto config = ParseTokenizerConfig(
      R"({"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]})");
  ASSERT_TRUE(config.ok()) << config.error().message();
  EXPECT_EQ(config->chat_template, "a");
  ASSERT_EQ(config->named_templates.size(), 1u);
  EXPECT_EQ(config->named_templates[0], std::pair(std::string("tool_use"), std::string("b")));
}

TEST(TokenizerConfigTest, WrongKindsNameTheField) {
  const auto message = [](std::string_view json) {
    const auto config = ParseTokenizerConfig(json);
    return config.ok() ? std::string("accepted") : config.error().message();
  };
  EXPECT_THAT(message(R"({"bos_token": 5})"), HasSubstr("bos_token"));
  EXPECT_THAT(message(R"({"eos_token": {"lstrip": false}})"), HasSubstr("eos_token"));
  EXPECT_THAT(message(R"({"chat_template": 5})"), HasSubstr("chat_template"));
  EXPECT_THAT(message(R"({"chat_template": [{"name": "x"}]})"), HasSubstr("chat_template[0]"));
  EXPECT_THAT(message("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(message("{"), HasSubstr("not a JSON object"));
}

}  // namespace
}  // namespace inferd::text
