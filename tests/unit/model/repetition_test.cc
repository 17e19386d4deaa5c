// SPDX-License-Identifier: Apache-2.0
// DRY against a search that compares every place with the end, token by token.
#include "model/repetition.h"

#include "model/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

namespace inferd::model {
namespace {

using spec::SamplingParams;
using Penalties = std::map<std::int32_t, float>;

SamplingParams Dry() {
  SamplingParams params;
  params.dry_multiplier = 0.8;
  return params;
}

Penalties Found(const std::vector<std::int32_t>& tokens, const SamplingParams& params) {
  std::vector<std::pair<std::int32_t, float>> list;
  ListRepetitions(tokens, params, &list);
  Penalties found(list.begin(), list.end());
  EXPECT_EQ(found.size(), list.size()) << "each token once";
  return found;
}

Penalties Reference(std::vector<std::int32_t> tokens, const SamplingParams& params) {
  if (params.dry_last_n >= 0 && tokens.size() > static_cast<std::size_t>(params.dry_last_n)) {
    tokens.erase(tokens.begin(), tokens.end() - params.dry_last_n);
  }
  const auto size = static_cast<std::int64_t>(tokens.size());
  const auto at = [&](std::int64_t i) { return tokens[static_cast<std::size_t>(i)]; };
  std::map<std::int32_t, std::int64_t> longest;
  for (std::int64_t next = 1; next < size; ++next) {  // what came after the earlier place
    std::int64_t length = 0;
    while (next - 1 - length >= 0 && at(next - 1 - length) == at(size - 1 - length) &&
           std::ranges::find(params.dry_breakers, at(size - 1 - length)) ==
               params.dry_breakers.end()) {
      ++length;
    }
    if (length >= params.dry_allowed_length) {
      longest[at(next)] = std::max(longest[at(next)], length);
    }
  }
  Penalties penalties;
  for (const auto& [token, length] : longest) {
    const double penalty =
        params.dry_multiplier *
        std::pow(params.dry_base, static_cast<double>(length - params.dry_allowed_length));
    penalties[token] = static_cast<float>(std::min(penalty, 1e6));
  }
  return penalties;
}

TEST(RepetitionTest, PenalisesWhatWouldProlongTheLongestRepetition) {
  // "1 2 3" came before and was followed by 4; "2 3" also by 9.
  const Penalties found = Found({1, 2, 3, 4, 7, 2, 3, 9, 1, 2, 3}, Dry());
  EXPECT_EQ(found.size(), 2U);
  EXPECT_FLOAT_EQ(found.at(4), 0.8F * 1.75F);
  EXPECT_FLOAT_EQ(found.at(9), 0.8F);
}

TEST(RepetitionTest, NoRepetitionReachesOverABreaker) {
  SamplingParams params = Dry();
  const std::vector<std::int32_t> tokens{1, 2, 3, 4, 7, 1, 2, 3};
  params.dry_breakers = {2};
  EXPECT_TRUE(Found(tokens, params).empty());
  params.dry_breakers = {1};
  EXPECT_FLOAT_EQ(Found(tokens, params).at(4), 0.8F);
  params.dry_breakers = {3};
  EXPECT_TRUE(Found(tokens, params).empty());
}

TEST(RepetitionTest, EqualsThePlainSearch) {
  std::mt19937 random(11);
  for (int round = 0; round < 4000; ++round) {
    SamplingParams params = Dry();
    params.dry_allowed_length = 1 + static_cast<std::int32_t>(random() % 4);
    params.dry_last_n = random() % 3 == 0 ? static_cast<std::int32_t>(random() % 40) : -1;
    const std::uint32_t alphabet = 1 + random() % 5;
    if (random() % 2 == 0) {
      params.dry_breakers = {static_cast<std::int32_t>(random() % alphabet)};
    }
    std::vector<std::int32_t> tokens(random() % 60);
    for (std::int32_t& token : tokens) {
      token = static_cast<std::int32_t>(random() % alphabet);
    }
    ASSERT_EQ(Found(tokens, params), Reference(tokens, params)) << round;
  }
}

TEST(RepetitionTest, ALongRepetitionCostsMuchButNotInfinitelyMuch) {
  const std::vector<std::int32_t> tokens(3000, 5);
  const float penalty = Found(tokens, Dry()).at(5);
  EXPECT_FLOAT_EQ(penalty, 1e6F);
  std::vector<float> logits(10, 0);
  logits[5] = 50;
  SamplingParams params = Dry();
  params.temperature = 0;
  const SamplingState state(params, tokens, 3000);
  spec::SampledToken out;
  SampleToken(logits, state, 3000, nullptr, &out);
  EXPECT_EQ(out.token, 0);
}

TEST(RepetitionTest, AReplayedSequenceGoesOnWithTheSameTokens) {
  SamplingParams params = Dry();
  params.temperature = 0.9;
  params.seed = 3;
  params.xtc_probability = 0.4;
  params.xtc_threshold = 0.05;
  const std::int64_t num_prompt = 4;
  std::vector<std::int32_t> tokens{1, 2, 1, 2};
  SamplingState state(params, tokens, num_prompt);
  const auto next = [&](const SamplingState& from) {
    std::mt19937 random(static_cast<std::uint32_t>(tokens.size()));
    std::vector<float> logits(8);
    for (float& logit : logits) {
      logit = static_cast<float>(random() % 1000) / 300;
    }
    spec::SampledToken out;
    SampleToken(logits, from, static_cast<std::int64_t>(tokens.size()), nullptr, &out);
    return out.token;
  };
  for (int i = 0; i < 100; ++i) {
    const SamplingState replayed(params, tokens, num_prompt);
    const std::int32_t token = next(state);
    ASSERT_EQ(next(replayed), token) << i;
    state.AddOutput(token);
    tokens.push_back(token);
  }
}

}  // namespace
}  // namespace inferd::model
