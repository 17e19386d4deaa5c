// SPDX-License-Identifier: Apache-2.0
#include "model/sampler.h"

#include "model/logit_passes.h"
#include "model/logits.h"
#include "spec/token_mask.h"
#include "unit/model/random_logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

namespace inferd::model {
namespace {

using spec::SamplingParams;

spec::SampledToken Sample(std::vector<float> logits,
                          const SamplingParams& params,
                          std::vector<std::int32_t> tokens = {},
                          std::int64_t num_prompt = 0,
                          std::int64_t position = 0) {
  const SamplingState state(params, tokens, num_prompt);
  const std::vector<float> before = logits;
  spec::SampledToken out;
  SampleToken(logits, state, position, nullptr, &out);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), logits.begin(), [](float a, float b) {
    return a == b || (std::isnan(a) && std::isnan(b));
  })) << "the row must have its old values afterwards";
  return out;
}

struct Draws {
  double temperature = 1;
  double top_p = 1;
  double min_p = 0;
  std::int32_t top_k = 0;
};

SamplingParams With(const Draws& draws) {
  SamplingParams params;
  params.temperature = draws.temperature;
  params.top_p = draws.top_p;
  params.min_p = draws.min_p;
  params.top_k = draws.top_k;
  return params;
}

SamplingParams Greedy() { return With({.temperature = 0}); }

TEST(SamplerTest, GreedyTakesTheLowestIdOfATie) {
  for (const std::size_t size : {1U, 7U, 8U, 9U, 64U, 1003U}) {
    std::vector<float> logits(size, -1.0F);
    logits[size / 2] = 2;
    logits[size - 1] = 2;
    EXPECT_EQ(Sample(logits, Greedy()).token, static_cast<std::int32_t>(size == 1 ? 0 : size / 2))
        << size;
  }
}

TEST(SamplerTest, NanAndInfinityFailTheRow) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const std::size_t at : {0U, 5U, 40U, 42U}) {
      std::vector<float> logits = RandomLogits(43, 1);
      logits[at] = bad;
      EXPECT_EQ(Sample(logits, Greedy()).token, -1);
      EXPECT_EQ(Sample(logits, SamplingParams{}).token, -1);
    }
  }
}

TEST(SamplerTest, ExpAgreesWithTheLibrary) {
  for (float x = 0; x > -86; x -= 0.0137F) {
    const double exact = std::exp(static_cast<double>(x));
    EXPECT_NEAR(ExpOf(x) / exact, 1, 3e-7) << x;
  }
  EXPECT_EQ(ExpOf(0), 1.0F);
  EXPECT_EQ(ExpOf(-200), 0.0F);
}

TEST(SamplerTest, EveryInstructionSetGivesTheSameBits) {
  const LogitPasses* all[3];
  const std::size_t count = AllLogitPasses(all);
  EXPECT_EQ(all[count - 1], &ChosenLogitPasses());
  for (const std::size_t size : {5U, 16U, 1000U, 2051U}) {
    const std::vector<float> logits = RandomLogits(size, 21, 5);
    for (std::size_t i = 1; i < count; ++i) {
      EXPECT_EQ(all[0]->sum_exp(logits.data(), size, 17, 0.9F),
                all[i]->sum_exp(logits.data(), size, 17, 0.9F));
      EXPECT_EQ(all[0]->exp(-3.3F), all[i]->exp(-3.3F));
      float a = 0;
      float b = 0;
      EXPECT_EQ(all[0]->peak(logits.data(), size, &a), all[i]->peak(logits.data(), size, &b));
      EXPECT_EQ(a, b);
      EXPECT_EQ(all[0]->next_at_least(logits.data(), 2, size, 1, 2, 9),
                all[i]->next_at_least(logits.data(), 2, size, 1, 2, 9));
      std::int64_t above[2];
      std::int64_t equal[2];
      all[0]->count(logits.data(), size, logits[size / 2], &above[0], &equal[0]);
      all[i]->count(logits.data(), size, logits[size / 2], &above[1], &equal[1]);
      EXPECT_EQ(above[0], above[1]);
      EXPECT_EQ(equal[0], equal[1]);
      EXPECT_EQ(equal[0], 1);
    }
  }
}

TEST(SamplerTest, SumExpCountsTailsOfEveryLength) {
  for (const std::size_t size : {1U, 3U, 8U, 13U, 2047U, 2048U, 2049U, 5003U}) {
    const std::vector<float> logits = RandomLogits(size, static_cast<std::uint32_t>(size));
    const float peak = *std::max_element(logits.begin(), logits.end());
    double exact = 0;
    for (const float x : logits) {
      exact += std::exp(static_cast<double>(x - peak) * 0.7);
    }
    EXPECT_NEAR(SumExp(logits, peak, 0.7F) / exact, 1, 1e-6) << size;
  }
}

TEST(SamplerTest, LogprobsAreOfTheRawDistribution) {
  const std::vector<float> logits = RandomLogits(501, 3);
  SamplingParams params = Greedy();
  params.logprobs = 5;
  params.logit_bias = {{17, 100.0F}};
  const spec::SampledToken out = Sample(logits, params);
  EXPECT_EQ(out.token, 17);
  double sum = 0;
  for (const float x : logits) {
    sum += std::exp(static_cast<double>(x));
  }
  EXPECT_NEAR(out.logprob, logits[17] - std::log(sum), 1e-5);
  EXPECT_EQ(out.rank, 1 + std::count_if(logits.begin(), logits.end(), [&](float x) {
                        return x > logits[17];
                      }));
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  ASSERT_EQ(out.top.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(out.top[i].token, order[i]);
    EXPECT_NEAR(out.top[i].logprob, logits[order[i]] - std::log(sum), 1e-5);
  }
}

TEST(SamplerTest, TopListsTiesByLowestId) {
  const std::vector<float> logits = {1, 3, 3, 0, 3, 2};
  SamplingParams params = Greedy();
  params.logprobs = 2;
  const spec::SampledToken out = Sample(logits, params);
  ASSERT_EQ(out.top.size(), 2U);
  EXPECT_EQ(out.top[0].token, 1);
  EXPECT_EQ(out.top[1].token, 2);
  EXPECT_EQ(RankOf(logits, 4), 3);
}

TEST(SamplerTest, PresenceAndFrequencyCountOnlyTheOutput) {
  std::vector<float> logits = {0, 5, 4.5F, 0};
  SamplingParams params = Greedy();
  params.presence_penalty = 2;
  params.frequency_penalty = 2;
  const std::vector<std::int32_t> prompt(50, 1);
  EXPECT_EQ(Sample(logits, params, prompt, 50).token, 1) << "the prompt must not count";
  std::vector<std::int32_t> tokens = prompt;
  tokens.push_back(1);
  EXPECT_EQ(Sample(logits, params, tokens, 50).token, 2);  // 5 - 2 - 2 * 1
  params.presence_penalty = 0;
  params.frequency_penalty = 0.2;
  EXPECT_EQ(Sample(logits, params, tokens, 50).token, 1);  // 5 - 0.2
  tokens.insert(tokens.end(), 2, 1);
  EXPECT_EQ(Sample(logits, params, tokens, 50).token, 2);  // 5 - 0.6
}

TEST(SamplerTest, RepetitionSeesPromptAndOutputAndSigns) {
  SamplingParams params = Greedy();
  params.repetition_penalty = 1.5;
  EXPECT_EQ(Sample({3, 2.5F}, params, {0}, 1).token, 1) << "prompt";
  EXPECT_EQ(Sample({3, 2.5F}, params, {1, 0}, 1).token, 0) << "both tokens are divided";
  EXPECT_EQ(Sample({-1, -1.2F}, params, {0}, 1).token, 1)
      << "a negative logit grows away from zero";
}

TEST(SamplerTest, AddOutputEqualsReplay) {
  SamplingParams params;
  params.frequency_penalty = 0.7;
  params.repetition_penalty = 1.1;
  std::vector<std::int32_t> tokens = {4, 9, 2};
  SamplingState grown(params, tokens, 3);
  for (const std::int32_t token : {7, 7, 4}) {
    grown.AddOutput(token);
    tokens.push_back(token);
  }
  const SamplingState replayed(params, tokens, 3);
  std::vector<float> logits = RandomLogits(20, 5);
  for (std::int64_t position = 0; position < 50; ++position) {
    spec::SampledToken a, b;
    SampleToken(logits, grown, position, nullptr, &a);
    SampleToken(logits, replayed, position, nullptr, &b);
    EXPECT_EQ(a.token, b.token);
  }
}

TEST(SamplerTest, SeedAndPositionFixTheToken) {
  const std::vector<float> logits = RandomLogits(1000, 8, 1);
  SamplingParams params;
  params.seed = 99;
  std::map<std::int32_t, int> seen;
  for (std::int64_t position = 0; position < 200; ++position) {
    const std::int32_t token = Sample(logits, params, {}, 0, position).token;
    EXPECT_EQ(token, Sample(logits, params, {}, 0, position).token);
    ++seen[token];
  }
  EXPECT_GT(seen.size(), 50U) << "positions must give different numbers";
  params.seed = 100;
  int same = 0;
  for (std::int64_t position = 0; position < 200; ++position) {
    SamplingParams other = params;
    other.seed = 99;
    same += Sample(logits, params, {}, 0, position).token ==
                    Sample(logits, other, {}, 0, position).token
                ? 1
                : 0;
  }
  EXPECT_LT(same, 40);
}

TEST(SamplerTest, RandomNumbersAreUniform) {
  constexpr int kCount = 100000;
  std::vector<int> buckets(10);
  for (int i = 0; i < kCount; ++i) {
    const double u = RandomAt(static_cast<std::uint64_t>(i % 7), i / 7);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++buckets[static_cast<std::size_t>(u * 10)];
  }
  for (const int count : buckets) {
    EXPECT_NEAR(count, kCount / 10, 500);
  }
}

// Plain formulation: softmax, sort, cut by count, by mass, by share of the peak.
std::vector<double> ReferenceDistribution(const std::vector<float>& logits,
                                          const SamplingParams& params) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(
      order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  if (params.top_k > 0) {
    order.resize(std::min(order.size(), static_cast<std::size_t>(params.top_k)));
  }
  std::vector<double> p(logits.size());
  double total = 0;
  for (const std::size_t i : order) {
    p[i] = std::exp((logits[i] - logits[order[0]]) / params.temperature);
    total += p[i];
  }
  double before = 0;
  double kept = 0;
  for (const std::size_t i : order) {
    const bool keep = before < params.top_p * total && p[i] >= params.min_p;
    before += p[i];
    p[i] = keep || i == order[0] ? p[i] : 0;
    kept += p[i];
  }
  for (double& value : p) {
    value /= kept;
  }
  return p;
}

void ExpectDistribution(const Draws& draws, float spread) {
  const SamplingParams params = With(draws);
  const std::vector<float> logits = RandomLogits(60, 12, spread);
  const std::vector<double> expected = ReferenceDistribution(logits, params);
  constexpr int kDraws = 20000;
  std::vector<int> seen(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    ++seen[static_cast<std::size_t>(Sample(logits, params, {}, 0, i).token)];
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double sigma = std::sqrt(kDraws * expected[i] * (1 - expected[i]));
    EXPECT_NEAR(seen[i], kDraws * expected[i], 5 * sigma + 1e-9) << "token " << i;
  }
}

TEST(SamplerTest, DrawsFollowTheDistribution) {
  ExpectDistribution({.temperature = 1}, 1);
  ExpectDistribution({.temperature = 0.5}, 2);
  ExpectDistribution({.temperature = 2.5}, 3);
}

TEST(SamplerTest, RestrictedDrawsFollowTheDistribution) {
  ExpectDistribution({.temperature = 1, .top_k = 5}, 1);
  ExpectDistribution({.temperature = 1, .top_p = 0.7}, 1);
  ExpectDistribution({.temperature = 0.8, .top_p = 0.95}, 0.1F);
  ExpectDistribution({.temperature = 1, .min_p = 0.2}, 1);
  ExpectDistribution({.temperature = 1.3, .top_p = 0.8, .min_p = 0.05, .top_k = 20}, 2);
  ExpectDistribution({.temperature = 1, .top_p = 0.5, .top_k = 3}, 8);
}

TEST(SamplerTest, TopKOfOneAndTinyTopPAreGreedy) {
  const std::vector<float> logits = RandomLogits(5000, 4);
  const std::int32_t best = Sample(logits, Greedy()).token;
  for (std::int64_t position = 0; position < 100; ++position) {
    EXPECT_EQ(Sample(logits, With({.temperature = 2, .top_k = 1}), {}, 0, position).token, best);
    EXPECT_EQ(Sample(logits, With({.temperature = 2, .top_p = 1e-9}), {}, 0, position).token, best);
    EXPECT_EQ(Sample(logits, With({.temperature = 1e-4}), {}, 0, position).token, best);
  }
}

TEST(SamplerTest, ScoreGivesLogprobAndRank) {
  const std::vector<float> logits = {0, 1, 2};
  spec::SampledToken out;
  ScoreToken(logits, 1, 2, &out);
  EXPECT_EQ(out.token, 1);
  EXPECT_EQ(out.rank, 2);
  EXPECT_NEAR(out.logprob, 1 - std::log(1 + std::exp(1.0) + std::exp(2.0)), 1e-6);
  ASSERT_EQ(out.top.size(), 2U);
  EXPECT_EQ(out.top[0].token, 2);
}

// ---- what may be sampled

spec::TokenMask MaskOf(const std::vector<std::int32_t>& ids, std::size_t vocab_size) {
  std::vector<std::uint32_t> bits(spec::MaskWords(static_cast<std::int64_t>(vocab_size)));
  for (const std::int32_t id : ids) {
    bits[static_cast<std::size_t>(id) / 32] |= 1U << (id % 32);
  }
  spec::TokenMask mask;
  spec::SetBits(bits, static_cast<std::int64_t>(vocab_size), &mask);
  return mask;
}

spec::SampledToken SampleUnder(const spec::TokenMask& mask,
                               std::vector<float> logits,
                               const SamplingParams& params,
                               std::int64_t position = 0) {
  const SamplingState state(params, {}, 0);
  const std::vector<float> before = logits;
  spec::SampledToken out;
  SampleToken(logits, state, position, &mask, &out);
  EXPECT_EQ(before, logits);
  return out;
}

TEST(SamplerMaskTest, OnlyAllowedTokensComeOut) {
  std::mt19937 random(11);
  for (const std::size_t vocab_size : {40U, 300U, 1003U}) {
    for (const int percent : {1, 30, 70, 99}) {
      std::vector<std::int32_t> ids;
      for (std::size_t id = 0; id < vocab_size; ++id) {
        if (static_cast<int>(random() % 100) < percent) {
          ids.push_back(static_cast<std::int32_t>(id));
        }
      }
      if (ids.empty()) {
        ids.push_back(17);
      }
      const spec::TokenMask mask = MaskOf(ids, vocab_size);
      const std::vector<float> logits = RandomLogits(vocab_size, random());
      // Greedy is the best of the allowed ones.
      const auto best = *std::max_element(ids.begin(), ids.end(), [&](auto a, auto b) {
        return logits[static_cast<std::size_t>(a)] < logits[static_cast<std::size_t>(b)];
      });
      EXPECT_EQ(SampleUnder(mask, logits, Greedy()).token, best);
      for (const Draws& draws : {Draws{},
                                 Draws{.temperature = 1.5},
                                 Draws{.temperature = 1e-4},
                                 Draws{.top_p = 0.9},
                                 Draws{.top_k = 50},
                                 Draws{.min_p = 0.01},
                                 Draws{.temperature = 100, .top_p = 0.999, .top_k = 5000}}) {
        for (std::int64_t position = 0; position < 20; ++position) {
          const std::int32_t token = SampleUnder(mask, logits, With(draws), position).token;
          EXPECT_TRUE(std::binary_search(ids.begin(), ids.end(), token));
        }
      }
    }
  }
}

TEST(SamplerMaskTest, LogprobsStayThoseOfTheModelAndAreFinite) {
  std::vector<float> logits = RandomLogits(200, 5);
  SamplingParams params = Greedy();
  params.logprobs = 20;
  const spec::SampledToken open = Sample(logits, params);
  const spec::SampledToken under = SampleUnder(MaskOf({9}, 200), logits, params);
  EXPECT_EQ(under.token, 9);
  ASSERT_EQ(under.top.size(), open.top.size());
  for (std::size_t i = 0; i < open.top.size(); ++i) {
    EXPECT_EQ(under.top[i].token, open.top[i].token);
    EXPECT_EQ(under.top[i].logprob, open.top[i].logprob);
  }
  EXPECT_TRUE(std::isfinite(under.logprob));
}

TEST(SamplerMaskTest, NothingAllowedFailsTheRow) {
  EXPECT_EQ(SampleUnder(MaskOf({}, 64), RandomLogits(64, 1), Greedy()).token, -1);
  SamplingParams params;
  params.allowed_tokens = {1, 2};
  EXPECT_EQ(SampleUnder(MaskOf({3}, 64), RandomLogits(64, 1), params).token, -1);
}

TEST(SamplerMaskTest, AMaskThatAllowsAllChangesNothing) {
  for (std::int64_t position = 0; position < 50; ++position) {
    const std::vector<float> logits = RandomLogits(500, static_cast<std::uint32_t>(position));
    EXPECT_EQ(SampleUnder(spec::TokenMask{}, logits, With({.top_p = 0.8}), position).token,
              Sample(logits, With({.top_p = 0.8}), {}, 0, position).token);
  }
}

TEST(SamplerMaskTest, AllowedTokensRestrictEverySample) {
  SamplingParams params;
  params.allowed_tokens = {3, 30, 61};
  std::map<std::int32_t, int> seen;
  for (std::int64_t position = 0; position < 300; ++position) {
    ++seen[Sample(RandomLogits(64, 1, 0.5), params, {}, 0, position).token];
  }
  ASSERT_EQ(seen.size(), 3U);
  EXPECT_TRUE(seen.contains(3) && seen.contains(30) && seen.contains(61));
}

TEST(SamplerMaskTest, BadWordsAreNotCompletedInTheOutput) {
  std::vector<float> logits(16, 0.0F);
  logits[5] = 3;
  logits[6] = 2;
  SamplingParams params = Greedy();
  params.bad_words = {{5}};
  EXPECT_EQ(Sample(logits, params).token, 6);
  params.bad_words = {{1, 2, 5}};
  EXPECT_EQ(Sample(logits, params, {9, 1, 2}, 1, 3).token, 6);
  EXPECT_EQ(Sample(logits, params, {1, 2}, 2, 2).token, 5) << "the prompt does not count";
  EXPECT_EQ(Sample(logits, params, {9, 2, 1}, 1, 3).token, 5);
  // Tokens that come one by one count like those of a replay.
  SamplingState grown(params, std::vector<std::int32_t>{9}, 1);
  grown.AddOutput(1);
  grown.AddOutput(2);
  spec::SampledToken out;
  SampleToken(logits, grown, 3, nullptr, &out);
  EXPECT_EQ(out.token, 6);
}

TEST(SamplerMaskTest, EndTokensWaitForMinTokensUnlessNothingElseIsLeft) {
  std::vector<float> logits(16, 0.0F);
  logits[5] = 3;
  logits[6] = 2;
  SamplingParams params = Greedy();
  params.min_tokens = 2;
  params.end_tokens = {5};
  EXPECT_EQ(Sample(logits, params, {9}, 1, 1).token, 6);
  EXPECT_EQ(Sample(logits, params, {9, 6}, 1, 2).token, 6);
  EXPECT_EQ(Sample(logits, params, {9, 6, 6}, 1, 3).token, 5);
  EXPECT_EQ(SampleUnder(MaskOf({5}, 16), logits, params).token, 5);
}

}  // namespace
}  // namespace inferd::model
