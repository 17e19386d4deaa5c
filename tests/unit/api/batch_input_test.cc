// SPDX-License-Identifier: Apache-2.0
// The lines of a batch: each bad one is told with its number, and what a crash has cut is not an
// answer.
#include "api/batch/batch_input.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace inferd::api {
namespace {

constexpr const char* kUrl = "/v1/completions";

std::string Line(const std::string& id, const std::string& url = kUrl) {
  return R"({"custom_id":")" + id + R"(","method":"POST","url":")" + url +
         R"(","body":{"prompt":"x"}})";
}

BatchInput Read(const std::string& text, const BatchInputLimits& limits = {}) {
  return ReadBatchInput(text, kUrl, limits);
}

TEST(BatchInput, InPiecesOrAtOnceIsTheSame) {
  const std::string text =
      Line("a") + "\r\n\n" + Line("b") + "\n{}\n" + Line("a") + "\n" + Line("c");
  const BatchInput whole = Read(text);
  ASSERT_EQ(whole.lines.size(), 3U);
  ASSERT_EQ(whole.errors.size(), 2U);
  for (const std::size_t step : {std::size_t{1}, std::size_t{50}, std::size_t{100}, text.size()}) {
    BatchInputReader reader(text, kUrl, {});
    std::size_t steps = 1;
    while (!reader.ReadOn(step)) {
      ++steps;
    }
    EXPECT_LE(steps, text.size() / step + 1) << "a step reads that much, or a line";
    EXPECT_GE(steps, step < 100 ? 4U : 1U) << "a step does not read all";
    const BatchInput input = reader.Take();
    ASSERT_EQ(input.lines.size(), whole.lines.size());
    for (std::size_t i = 0; i < whole.lines.size(); ++i) {
      EXPECT_EQ(input.lines[i].custom_id, whole.lines[i].custom_id);
      EXPECT_EQ(input.lines[i].at, whole.lines[i].at);
    }
    ASSERT_EQ(input.errors.size(), whole.errors.size());
    EXPECT_EQ(input.errors[1].line, whole.errors[1].line);
  }
}

TEST(BatchInput, TakesLinesOfAnyLineEnd) {
  const std::string text = Line("a") + "\r\n\n  \n" + Line("b") + "\n" + Line("\u00fc");
  const BatchInput input = Read(text);
  ASSERT_TRUE(input.errors.empty()) << input.errors[0].message;
  ASSERT_EQ(input.lines.size(), 3U);
  EXPECT_EQ(input.lines[2].custom_id, "\u00fc");
  EXPECT_EQ(text.substr(input.lines[1].at, input.lines[1].size), Line("b"));
  EXPECT_EQ(BodyOf(Line("b")), R"({"prompt":"x"})");
}

TEST(BatchInput, EachBadLineIsToldWithItsNumber) {
  struct {
    std::string line;
    std::string code;
    std::string param;
  } const cases[] = {
      {"nonsense", "invalid_json_line", ""},
      {"[]", "invalid_json_line", ""},
      {Line("a") + Line("b"), "invalid_json_line", ""},
      {"{\"custom_id\":\"\xff\"}", "invalid_json_line", "custom_id"},
      {R"({"method":"POST","url":"/v1/completions","body":{}})",
       "missing_required_parameter",
       "custom_id"},
      {R"({"custom_id":7,"method":"POST","url":"/v1/completions","body":{}})",
       "invalid_value",
       "custom_id"},
      {Line(""), "invalid_value", "custom_id"},
      {Line(std::string(600, 'x')), "invalid_value", "custom_id"},
      {R"({"custom_id":"a","url":"/v1/completions","body":{}})",
       "missing_required_parameter",
       "method"},
      {R"({"custom_id":"a","method":"GET","url":"/v1/completions","body":{}})",
       "invalid_value",
       "method"},
      {R"({"custom_id":"a","method":"POST","body":{}})", "missing_required_parameter", "url"},
      {Line("a", "/v1/embeddings"), "mismatched_endpoint", "url"},
      {R"({"custom_id":"a","method":"POST","url":"/v1/completions"})",
       "missing_required_parameter",
       "body"},
      {R"({"custom_id":"a","method":"POST","url":"/v1/completions","body":[]})",
       "invalid_value",
       "body"},
      {Line("first"), "duplicate_custom_id", "custom_id"},
  };
  for (const auto& one : cases) {
    const BatchInput input = Read(Line("first") + "\n\n" + one.line + "\n" + Line("last"));
    ASSERT_EQ(input.errors.size(), 1U) << one.line;
    EXPECT_EQ(input.errors[0].line, 3) << one.line;
    EXPECT_EQ(input.errors[0].code, one.code) << one.line;
    EXPECT_EQ(input.errors[0].param, one.param) << one.line;
    EXPECT_FALSE(input.errors[0].message.empty());
  }
}

TEST(BatchInput, LimitsAreHeld) {
  EXPECT_EQ(Read("").errors.at(0).code, "empty_file");
  EXPECT_EQ(Read("\n \n").errors.at(0).code, "empty_file");
  EXPECT_EQ(Read("").errors.at(0).line, 0);
  const std::string three = Line("a") + "\n" + Line("b") + "\n" + Line("c");
  EXPECT_TRUE(Read(three, {.max_lines = 3}).errors.empty());
  EXPECT_EQ(Read(three, {.max_lines = 2}).errors.at(0).code, "too_many_requests");
  EXPECT_EQ(Read(three, {.max_line_bytes = 10}).errors.at(2).code, "line_too_long");
  std::string bad;
  for (int i = 0; i < 50; ++i) {
    bad += "x\n";
  }
  EXPECT_EQ(Read(bad, {.max_errors = 10}).errors.size(), 10U);
}

TEST(BatchInput, OfflineLinesCallWhatTheyLike) {
  const std::string text = Line("a") + "\n" + Line("b", "/v1/embeddings") + "\n" +
                           Line("c", "/rerank") + "\n" + Line("d", "/v1/models");
  const BatchInput input = ReadBatchInput(text, "", {});
  EXPECT_EQ(input.lines.size(), 3U);
  ASSERT_EQ(input.errors.size(), 1U);
  EXPECT_EQ(input.errors[0].line, 4);
  EXPECT_NE(input.errors[0].message.find("/v1/chat/completions"), std::string::npos);
}

TEST(BatchInput, WhatACrashHasCutIsNoAnswer) {
  const std::string good = R"({"custom_id":"a","response":{"status_code":200}})"
                           "\n";
  const std::string bad = R"({"custom_id":"b","response":{"status_code":400}})"
                          "\n";
  const std::string unrun = R"({"custom_id":"c","response":null,"error":{}})"
                            "\n";
  const std::string all = good + bad + unrun;
  std::size_t whole = 0;
  for (std::size_t size = 0; size <= all.size(); ++size) {
    const auto ids = AnsweredIds(std::string_view(all).substr(0, size), &whole);
    const std::size_t lines = size < good.size()                ? 0
                              : size < good.size() + bad.size() ? 1
                              : size < all.size()               ? 2
                                                                : 3;
    EXPECT_EQ(ids.size(), lines) << size;
    EXPECT_EQ(whole,
              lines == 0   ? 0
              : lines == 1 ? good.size()
              : lines == 2 ? good.size() + bad.size()
                           : all.size());
  }
  const auto ids = AnsweredIds(all, &whole);
  EXPECT_TRUE(ids.at("a"));
  EXPECT_FALSE(ids.at("b"));
  EXPECT_FALSE(ids.at("c"));
  AnsweredIds(good + std::string(100, '\0') + "\n" + bad, &whole);  // blocks lost with the power
  EXPECT_EQ(whole, good.size());
}

}  // namespace
}  // namespace inferd::api
