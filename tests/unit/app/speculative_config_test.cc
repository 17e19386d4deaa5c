// SPDX-License-Identifier: Apache-2.0
#include "app/speculative_config.h"

#include <gtest/gtest.h>

#include <string>

namespace inferd::app {
namespace {

std::string ErrorOf(const std::string& text) {
  const auto parsed = ParseSpeculativeConfig(text);
  return parsed.ok() ? "" : parsed.error().message();
}

TEST(SpeculativeConfig, ReadsTheNamesOfVllm) {
  EXPECT_EQ(ParseSpeculativeConfig("")->num_tokens, 0);
  EXPECT_EQ(ParseSpeculativeConfig(R"({"method": "ngram"})")->num_tokens, 5);
  const auto parsed = ParseSpeculativeConfig(
      R"({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 6,
          "prompt_lookup_min": 3, "adaptive": false})");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message();
  EXPECT_EQ(parsed->num_tokens, 3);
  EXPECT_EQ(parsed->prompt_lookup.max_ngram, 6);
  EXPECT_EQ(parsed->prompt_lookup.min_ngram, 3);
  EXPECT_FALSE(parsed->prompt_lookup.adaptive);
  EXPECT_EQ(ParseSpeculativeConfig(R"({"prompt_lookup_max": 1})")->prompt_lookup.min_ngram, 1);
}

TEST(SpeculativeConfig, RefusesByName) {
  EXPECT_NE(ErrorOf("ngram").find("give a JSON object"), std::string::npos);
  EXPECT_NE(ErrorOf("{").find("give a JSON object"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"method": "eagle3"})").find("eagle3"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"model": "x/y"})").find("model"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"num_speculative_tokens": 0})").find("from 1 to 32"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"num_speculative_tokens": 2.5})").find("2.5"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"draft": 1})").find("draft is 1"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"adaptive": 1})").find("adaptive"), std::string::npos);
  EXPECT_NE(ErrorOf(R"({"prompt_lookup_min": 5, "prompt_lookup_max": 4})").find("more than"),
            std::string::npos);
}

}  // namespace
}  // namespace inferd::app
