// SPDX-License-Identifier: Apache-2.0
// Logprobs from the device: the host sampler's, bit for bit, and those of a plain log-softmax.
#include "device_fixture.h"
#include "kernels/sampling/sampling_cuda.h"
#include "model/sample_batch.h"
#include "model/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace inferd::kernels::cuda {
namespace {

constexpr std::int64_t kGap = 3;  // between the rows

struct Asked {
  std::vector<float> logits;
  std::int32_t token = 0;
  std::int32_t top = -1;
};

// Rows of one vocabulary; where `top` is below 0 the score is left as it was.
std::vector<TokenScore> Scores(const std::vector<Asked>& rows) {
  const auto vocab = static_cast<std::int32_t>(rows.front().logits.size());
  std::vector<float> logits;
  std::vector<SamplingRow> params(rows.size());
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    logits.insert(logits.end(), rows[i].logits.begin(), rows[i].logits.end());
    logits.resize(logits.size() + kGap, 1e9F);
    params[i].top = rows[i].top;
    tokens.push_back(rows[i].token);
  }
  const DeviceArray<float> d_logits(logits);
  const DeviceArray<SamplingRow> d_params(params);
  const DeviceArray<std::int32_t> d_tokens(tokens);
  const DeviceArray<TokenScore> scores(std::vector<TokenScore>(rows.size()));
  SamplingArgs args;
  args.logits = d_logits.get();
  args.ld = vocab + kGap;
  args.rows = static_cast<std::int64_t>(rows.size());
  args.vocab = vocab;
  args.params = d_params.get();
  args.token = d_tokens.get();
  args.scores = scores.get();
  EXPECT_OK(Score(args, nullptr));
  const std::vector<float> after = d_logits.Download();
  EXPECT_EQ(std::memcmp(after.data(), logits.data(), logits.size() * sizeof(float)), 0);
  return scores.Download();
}

void ExpectSame(const spec::SampledToken& got, const spec::SampledToken& want) {
  EXPECT_EQ(got.token, want.token);
  if (want.token < 0) {
    return;
  }
  EXPECT_EQ(got.logprob, want.logprob);
  EXPECT_EQ(got.rank, want.rank);
  ASSERT_EQ(got.top.size(), want.top.size());
  for (std::size_t i = 0; i < want.top.size(); ++i) {
    EXPECT_EQ(got.top[i].token, want.top[i].token) << i;
    EXPECT_EQ(got.top[i].logprob, want.top[i].logprob) << i;
  }
}

// All ids, best first.
std::vector<std::int32_t> OrderOf(const std::vector<float>& logits) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  return ids;
}

// In doubles, without any of the host sampler's code.
void ExpectNearPlain(const Asked& asked, const spec::SampledToken& got) {
  const double peak = *std::max_element(asked.logits.begin(), asked.logits.end());
  double sum = 0;
  for (const float logit : asked.logits) {
    sum += std::exp(static_cast<double>(logit) - peak);
  }
  const auto logprob = [&](std::int32_t id) {
    return static_cast<double>(asked.logits[static_cast<std::size_t>(id)]) - peak - std::log(sum);
  };
  const auto near = [&](float value, std::int32_t id) {
    EXPECT_NEAR(value, logprob(id), 2e-6 + 1e-6 * std::fabs(logprob(id)));
  };
  const std::vector<std::int32_t> order = OrderOf(asked.logits);
  near(got.logprob, asked.token);
  EXPECT_EQ(order[static_cast<std::size_t>(got.rank - 1)], asked.token);
  ASSERT_EQ(got.top.size(), std::min(order.size(), static_cast<std::size_t>(asked.top)));
  for (std::size_t i = 0; i < got.top.size(); ++i) {
    EXPECT_EQ(got.top[i].token, order[i]) << i;
    near(got.top[i].logprob, order[i]);
  }
}

void ExpectAsOnTheHost(const std::vector<Asked>& rows) {
  const std::vector<TokenScore> scores = Scores(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE("row " + std::to_string(i) + " of " + std::to_string(rows[i].logits.size()));
    spec::SampledToken want;
    spec::SampledToken got;
    model::ScoreToken(rows[i].logits, rows[i].token, rows[i].top, &want);
    model::TakeScore(scores[i], &got);
    ExpectSame(got, want);
    if (want.token >= 0) {
      ExpectNearPlain(rows[i], got);
    }
  }
}

// The ends of lanes, blocks of 2048, chunks, and of what the block of threads sums at once.
class ScoreCuda : public testing::TestWithParam<int> {};

TEST_P(ScoreCuda, IsTheHostsOverVocabularies) {
  const auto vocab = static_cast<std::size_t>(GetParam());
  std::vector<Asked> rows;
  for (const std::int32_t top : {0, 1, 5, kMaxTop}) {
    for (const float scale : {0.1F, 3.0F, 20.0F}) {
      Asked& asked = rows.emplace_back();
      asked.logits = RandomFloats(vocab, static_cast<unsigned>(100 + rows.size()), scale);
      asked.token = static_cast<std::int32_t>(rows.size() * 7919 % vocab);
      asked.top = top;
    }
  }
  ExpectAsOnTheHost(rows);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies,
                         ScoreCuda,
                         testing::Values(1, 7, 8, 19, 33, 997, 2047, 2048, 2057, 16'385, 33'001));

TEST(ScoreCudaRows, VocabulariesBeyondOnePass) {
  Asked asked;
  asked.logits = RandomFloats(131'072 + 2048 + 5, 3, 4);
  asked.top = kMaxTop;
  asked.token = 131'072 + 2050;
  asked.logits[131'072 + 2051] = 30;
  Asked other = asked;
  other.token = 131'072 + 2051;
  ExpectAsOnTheHost({asked, other});
}

TEST(ScoreCudaRows, TheLowerIdComesFirstAmongEquals) {
  std::vector<Asked> rows;
  for (const float step : {0.0F, 1.0F, 4.0F}) {  // all equal, many equal, more equal
    Asked asked;
    asked.logits = RandomFloats(2500, 5, 3);
    for (float& logit : asked.logits) {
      logit = step == 0 ? -2.5F : std::round(logit / step) * step;
    }
    asked.top = kMaxTop;
    for (const std::int32_t token : {0, 40, 1201, 2499}) {
      asked.token = token;
      rows.push_back(asked);
    }
  }
  // Zeros of either sign are equal.
  Asked zeros;
  zeros.logits.assign(2500, 0.0F);
  for (std::size_t i = 0; i < zeros.logits.size(); i += 3) {
    zeros.logits[i] = -0.0F;
  }
  zeros.token = 7;
  zeros.top = 9;
  rows.push_back(zeros);
  ExpectAsOnTheHost(rows);
}

TEST(ScoreCudaRows, TheBestMayAllLieInOneChunk) {
  std::vector<Asked> rows(2);
  for (Asked& asked : rows) {
    asked.logits = RandomFloats(16'500, 8, 1);
    asked.top = kMaxTop;
    asked.token = 64;
  }
  for (std::size_t i = 0; i < 25; ++i) {
    rows[0].logits[64 + i] = 50 - static_cast<float>(i * 7 % 25);
    rows[1].logits[16'499 - i] = 50;
  }
  ExpectAsOnTheHost(rows);
}

TEST(ScoreCudaRows, WhatIsFarBelowHasALogprobAndNoWeight) {
  Asked asked;
  asked.logits = RandomFloats(700, 9, 2);
  for (std::size_t i = 0; i < 690; ++i) {
    asked.logits[i] = i % 2 == 0 ? -1e30F : -300.0F;
  }
  asked.token = 4;
  asked.top = kMaxTop;
  ExpectAsOnTheHost({asked});
}

TEST(ScoreCudaRows, BrokenRowsAndTokensThatAreNoneHaveNoScore) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<Asked> rows;
  for (const float broken : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const std::size_t at : {0U, 77U, 2499U}) {
      Asked& asked = rows.emplace_back();
      asked.logits = RandomFloats(2500, 11, 2);
      asked.logits[at] = broken;
      asked.token = 5;
      asked.top = 3;
    }
  }
  for (const std::int32_t token : {-1, 2500, 1 << 30}) {
    Asked& asked = rows.emplace_back();
    asked.logits = RandomFloats(2500, 11, 2);
    asked.token = token;
    asked.top = 3;
  }
  for (const TokenScore& score : Scores(rows)) {
    EXPECT_EQ(score.token, -1);
  }
  ExpectAsOnTheHost(rows);
}

TEST(ScoreCudaRows, ARowsScoreDoesNotDependOnItsNeighbours) {
  std::vector<Asked> rows;
  for (unsigned seed = 0; seed < 5; ++seed) {
    Asked& asked = rows.emplace_back();
    asked.logits = RandomFloats(997, 60 + seed, 3);
    asked.token = static_cast<std::int32_t>(seed);
    asked.top = static_cast<std::int32_t>(4 * seed) - 4;  // the first asks for none
  }
  rows[3].logits[1] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<TokenScore> all = Scores(rows);
  EXPECT_EQ(std::memcmp(&all[0], std::vector<TokenScore>(1).data(), sizeof(TokenScore)), 0)
      << "a row that asks for nothing";
  for (const std::size_t i : {1U, 2U, 4U}) {
    const TokenScore alone = Scores({rows[i]})[0];
    EXPECT_EQ(std::memcmp(&alone, &all[i], sizeof(TokenScore)), 0) << i;
  }
}

}  // namespace
}  // namespace inferd::kernels::cuda
