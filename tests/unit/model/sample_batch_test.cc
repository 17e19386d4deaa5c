// SPDX-License-Identifier: Apache-2.0
// What the device draws from a SampleBatch is what SampleToken draws on the host, with its
// logprobs.
#include "model/sample_batch.h"

#include "ops/device.h"
#include "unit/model/random_logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace inferd::model {
namespace {

constexpr std::int64_t kVocab = 301;

struct Request {
  std::string name;
  spec::SamplingParams params;
  std::vector<std::int32_t> guesses;
  spec::TokenMask mask;
};

spec::TokenMask MaskOf(spec::TokenMask::Kind kind, std::vector<std::int32_t> tokens) {
  spec::TokenMask mask;
  mask.kind = kind;
  mask.tokens = std::move(tokens);
  return mask;
}

// Each with the others' defaults; sampled at several temperatures.
std::vector<Request> Requests() {
  using Kind = spec::TokenMask::Kind;
  std::vector<Request> all;
  const auto add = [&](std::string name) -> Request& {
    Request& request = all.emplace_back();
    request.name = std::move(name);
    return request;
  };
  add("plain");
  add("top_k").params.top_k = 20;
  add("top_p").params.top_p = 0.8;
  add("min_p").params.min_p = 0.05;
  add("bias").params.logit_bias = {{5, 9.0F}, {200, -100.0F}};
  Request& penalties = add("penalties");
  penalties.params.repetition_penalty = 1.3;
  penalties.params.presence_penalty = 0.5;
  penalties.params.frequency_penalty = 0.25;
  Request& guessed = add("penalties after guesses");
  guessed.params = penalties.params;
  guessed.guesses = {7, 7, 7, 280};
  Request& dry = add("DRY");
  dry.params.dry_multiplier = 2;
  Request& bans = add("bans");
  bans.params.min_tokens = 50;
  bans.params.end_tokens = {1, 2, 3};
  bans.params.bad_words = {{9}, {7, 11}};
  Request& bad_word = add("bad word after a guess");
  bad_word.params.bad_words = {{7, 11}, {7, 12}};
  bad_word.guesses = {7};
  add("allowed").params.allowed_tokens = {3, 4, 77, 300};
  add("only").mask = MaskOf(Kind::kOnly, {10, 20, 30, 299});
  add("all but").mask = MaskOf(Kind::kAllBut, {0, 1, 2, 3, 150});
  Request& bits = add("bits");
  bits.mask.kind = Kind::kBits;
  bits.mask.bits.assign(spec::MaskWords(kVocab) - 1, 0x0f0f0f0fU);  // nothing beyond
  Request& both = add("allowed and a mask");
  both.params.allowed_tokens = {10, 11, 20};
  both.mask = MaskOf(Kind::kOnly, {11, 20, 21});
  Request& nothing = add("nothing is left");
  nothing.params.allowed_tokens = {10};
  nothing.mask = MaskOf(Kind::kOnly, {11});
  return all;
}

SamplingState StateOf(const spec::SamplingParams& params) {
  const std::vector<std::int32_t> tokens = {7, 11, 12, 30, 7, 11, 12, 30, 7, 11, 300};
  return SamplingState(params, tokens, 4);
}

TEST(SampleBatch, TheDeviceDrawsWhatTheHostDraws) {
  auto device = ops::MakeDevice("cuda-emu", 1, {});
  ASSERT_TRUE(device.ok()) << device.error().message();
  std::vector<Request> requests;
  for (const double temperature : {0.0, 0.7, 1.5}) {
    for (Request& request : Requests()) {
      request.params.temperature = temperature;
      request.params.seed = 17 * requests.size() + 1;
      request.params.logprobs = static_cast<std::int32_t>(requests.size() % 5) - 1;
      requests.push_back(std::move(request));
    }
  }
  // A token that is given comes last.
  const auto rows = static_cast<std::int64_t>(requests.size()) + 1;
  SampleBatch batch(kVocab, rows, 64);
  ASSERT_TRUE((*device)->ReserveSampling(batch.limits()).ok());
  std::vector<float> logits;
  std::vector<spec::SampledToken> expected;
  for (const Request& request : requests) {
    ASSERT_TRUE(SamplesOnDevice(request.params)) << request.name;
    std::vector<float> row = RandomLogits(kVocab, static_cast<std::uint32_t>(logits.size()));
    logits.insert(logits.end(), row.begin(), row.end());
    const SamplingState state = StateOf(request.params);
    const auto position = static_cast<std::int64_t>(11 + request.guesses.size());
    ASSERT_TRUE(batch.Add(state, request.guesses, position, &request.mask));
    SamplingState later = state;
    for (const std::int32_t guess : request.guesses) {
      later.AddOutput(guess);
    }
    spec::SampledToken out;
    SampleToken(row, later, position, &request.mask, &out);
    expected.push_back(out);
  }
  const std::vector<float> last = RandomLogits(kVocab, 4711);
  logits.insert(logits.end(), last.begin(), last.end());
  ASSERT_TRUE(batch.AddGiven(211, 6));
  ScoreToken(last, 211, 6, &expected.emplace_back());
  auto memory = (*device)->Allocate(logits.size() * sizeof(float), "logits");
  std::vector<std::int32_t> got(expected.size());
  auto tokens = (*device)->Allocate(got.size() * sizeof(std::int32_t), "tokens");
  auto scores = (*device)->AllocateHost(expected.size() * sizeof(ops::TokenScore), "scores");
  ASSERT_TRUE(memory.ok() && tokens.ok() && scores.ok());
  (*device)->Copy(memory->data(), logits.data(), logits.size() * sizeof(float));
  auto* const scored = reinterpret_cast<ops::TokenScore*>(scores->data());
  (*device)->Sample(
      batch.Task(memory->floats(), reinterpret_cast<std::int32_t*>(tokens->data()), scored));
  (*device)->Copy(got.data(), tokens->data(), tokens->bytes());
  ASSERT_TRUE((*device)->Wait().ok());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(i < requests.size() ? requests[i].name : "given");
    EXPECT_EQ(got[i], expected[i].token);
    if (i < requests.size() && requests[i].params.logprobs < 0) {
      continue;
    }
    spec::SampledToken token;
    TakeScore(scored[i], &token);
    EXPECT_EQ(token.token, expected[i].token);
    EXPECT_EQ(token.logprob, expected[i].logprob);
    EXPECT_EQ(token.rank, expected[i].rank);
    ASSERT_EQ(token.top.size(), expected[i].top.size());
    for (std::size_t t = 0; t < token.top.size(); ++t) {
      EXPECT_EQ(token.top[t].token, expected[i].top[t].token);
      EXPECT_EQ(token.top[t].logprob, expected[i].top[t].logprob);
    }
  }
}

TEST(SampleBatch, RowsBeyondTheLimitsWaitForTheNextBatch) {
  SampleBatch batch(kVocab, 2, 8);
  const SamplingState state = StateOf({});
  EXPECT_TRUE(batch.Add(state, {}, 11, nullptr));
  EXPECT_TRUE(batch.Add(state, {}, 11, nullptr));
  EXPECT_FALSE(batch.Add(state, {}, 11, nullptr)) << "rows";
  EXPECT_FALSE(batch.AddGiven(5, 0)) << "rows";
  EXPECT_EQ(batch.rows(), 2);
  batch.Clear();
  spec::SamplingParams params;
  for (std::int32_t token = 0; token < 200; ++token) {
    params.logit_bias.emplace_back(token, 1.0F);
  }
  EXPECT_TRUE(batch.Add(StateOf(params), {}, 11, nullptr));
  EXPECT_FALSE(batch.Add(StateOf(params), {}, 11, nullptr)) << "edits";
  EXPECT_EQ(batch.Task(nullptr, nullptr, nullptr).edits.size(), 200U)
      << "the refused row left nothing";
}

TEST(SampleBatch, WhatOnlyTheHostCanDoStaysThere) {
  EXPECT_TRUE(SamplesOnDevice({}));
  spec::SamplingParams logprobs, typical, xtc, order, bans;
  logprobs.logprobs = ops::kMaxTop;
  EXPECT_TRUE(SamplesOnDevice(logprobs));
  logprobs.logprobs = ops::kMaxTop + 1;
  typical.typical_p = 0.9;
  xtc.xtc_probability = 0.5;
  order.samplers = {spec::SamplerKind::kTopK};
  bans.bad_words.assign(ops::kMaxBansOfRow + 1, {5});
  for (const spec::SamplingParams& params : {logprobs, typical, xtc, order, bans}) {
    EXPECT_FALSE(SamplesOnDevice(params));
  }
}

}  // namespace
}  // namespace inferd::model
