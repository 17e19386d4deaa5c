// SPDX-License-Identifier: Apache-2.0
// The chain of samplers against one that is written as plainly as can be: sort, weigh, drop.
#include "model/sampler_chain.h"

#include "model/logits.h"
#include "model/sampler.h"
#include "unit/model/random_logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

namespace inferd::model {
namespace {

using spec::SamplerKind;
using spec::SamplingParams;

std::int32_t Sample(std::vector<float> logits,
                    const SamplingParams& params,
                    std::int64_t position = 0) {
  const SamplingState state(params, {}, 0);
  spec::SampledToken out;
  SampleToken(logits, state, position, nullptr, &out);
  return out.token;
}

// ---- the reference

struct Plain {
  float z = 0;
  std::int32_t token = 0;
  double p = 0;
};

void Weigh(std::vector<Plain>& list) {
  std::stable_sort(list.begin(), list.end(), [](const Plain& a, const Plain& b) {
    return a.z != b.z ? a.z > b.z : a.token < b.token;
  });
  double total = 0;
  for (Plain& item : list) {
    item.p = static_cast<double>(ExpOf(item.z - list[0].z));
    total += item.p;
  }
  for (Plain& item : list) {
    item.p /= total;
  }
}

double Entropy(const std::vector<Plain>& list) {
  double entropy = 0;
  for (const Plain& item : list) {
    if (item.p > 0) {
      entropy -= item.p * std::log(item.p);
    }
  }
  return entropy;
}

void Apply(SamplerKind kind,
           const SamplingParams& params,
           bool xtc_comes,
           std::vector<Plain>& list) {
  Weigh(list);
  std::vector<Plain> kept;
  double before = 0;
  switch (kind) {
    case SamplerKind::kTemperature: {
      double temperature = params.temperature;
      if (params.dynatemp_range > 0 && list.size() > 1) {
        const double low = std::max(0.0, temperature - params.dynatemp_range);
        const double high = temperature + params.dynatemp_range;
        temperature = low + (high - low) *
                                std::pow(Entropy(list) / std::log(static_cast<double>(list.size())),
                                         params.dynatemp_exponent);
      }
      if (temperature < 1e-5) {
        list.resize(1);
        return;
      }
      for (Plain& item : list) {
        item.z *= static_cast<float>(1 / temperature);
      }
      return;
    }
    case SamplerKind::kTopK:
      if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < list.size()) {
        list.resize(static_cast<std::size_t>(params.top_k));
      }
      return;
    case SamplerKind::kTopP:
      for (const Plain& item : list) {
        if (kept.empty() || before < params.top_p || params.top_p >= 1) {
          kept.push_back(item);
        }
        before += item.p;
      }
      list = kept;
      return;
    case SamplerKind::kMinP:
      for (const Plain& item : list) {
        if (params.min_p == 0 || item.z >= list[0].z + static_cast<float>(std::log(params.min_p))) {
          kept.push_back(item);
        }
      }
      list = kept;
      return;
    case SamplerKind::kTypicalP: {
      if (params.typical_p >= 1) {
        return;
      }
      const double entropy = Entropy(list);
      std::vector<Plain> by_distance = list;
      std::stable_sort(by_distance.begin(), by_distance.end(), [&](const Plain& a, const Plain& b) {
        const auto distance = [&](const Plain& item) {
          return item.p > 0 ? std::abs(-std::log(item.p) - entropy) : HUGE_VAL;
        };
        return distance(a) < distance(b);
      });
      for (const Plain& item : by_distance) {
        if (kept.empty() || before < params.typical_p) {
          kept.push_back(item);
        }
        before += item.p;
      }
      list = kept;
      return;
    }
    case SamplerKind::kXtc: {
      std::size_t above = 0;
      for (const Plain& item : list) {
        above += item.p >= params.xtc_threshold ? 1 : 0;
      }
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (!xtc_comes || above < 2 || i + 1 >= above) {
          kept.push_back(list[i]);
        }
      }
      list = kept;
      return;
    }
  }
}

std::vector<Plain> Survivors(const std::vector<float>& logits,
                             const SamplingParams& params,
                             bool xtc_comes) {
  std::vector<Plain> list;
  const float peak = *std::ranges::max_element(logits);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    list.push_back({logits[i] - peak, static_cast<std::int32_t>(i), 0});
  }
  std::vector<SamplerKind> order = params.samplers;
  if (order.empty()) {
    order = {SamplerKind::kTemperature,
             SamplerKind::kTopK,
             SamplerKind::kTypicalP,
             SamplerKind::kTopP,
             SamplerKind::kMinP,
             SamplerKind::kXtc};
  }
  for (const SamplerKind kind : order) {
    Apply(kind, params, xtc_comes, list);
  }
  Weigh(list);
  return list;
}

std::int32_t Draw(const std::vector<Plain>& list, double random) {
  double sum = 0;
  for (const Plain& item : list) {
    sum += item.p;
    if (sum > random) {
      return item.token;
    }
  }
  return list[0].token;
}

// ---- tests

TEST(SamplerChainTest, EqualsThePlainChainForRandomParameters) {
  std::mt19937 random(5);
  const auto real = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const auto sometimes = [&] { return random() % 2 == 0; };
  for (int round = 0; round < 3000; ++round) {
    const std::size_t size = 1 + random() % 300;
    const auto logits = RandomLogits(size, static_cast<std::uint32_t>(round), 2);
    SamplingParams params;
    params.seed = random();
    params.temperature = real(0.2, 2);
    params.typical_p = sometimes() ? real(0.1, 0.99) : 1;
    params.top_p = sometimes() ? real(0.1, 0.99) : 1;
    params.top_k = sometimes() ? static_cast<std::int32_t>(random() % 50) : 0;
    params.min_p = sometimes() ? real(0, 0.3) : 0;
    params.dynatemp_range = sometimes() ? real(0, 2) : 0;
    params.dynatemp_exponent = real(0.5, 2);
    // 0 and 1, so that the reference need not know the random number that decides.
    params.xtc_probability = sometimes() ? 1 : 0;
    params.xtc_threshold = real(0.01, 0.5);
    if (sometimes()) {
      for (std::size_t i = 0; i < 1 + random() % 6; ++i) {
        params.samplers.push_back(static_cast<SamplerKind>(random() % 6));
      }
    }
    if (!UsesChain(params)) {
      continue;
    }
    const auto position = static_cast<std::int64_t>(random() % 1000);
    const auto expected = Survivors(logits, params, params.xtc_probability > 0);
    ASSERT_EQ(Sample(logits, params, position), Draw(expected, RandomAt(params.seed, position)))
        << "round " << round;
  }
}

TEST(SamplerChainTest, TheUsualSamplersDrawTheSameAsWithoutTheChain) {
  for (std::uint32_t round = 0; round < 500; ++round) {
    const auto logits = RandomLogits(400, round);
    SamplingParams usual;
    usual.temperature = 0.8;
    usual.top_k = 20;
    usual.top_p = 0.9;
    usual.min_p = 0.02;
    usual.seed = round;
    SamplingParams listed = usual;
    listed.samplers = {
        SamplerKind::kTemperature, SamplerKind::kTopK, SamplerKind::kTopP, SamplerKind::kMinP};
    EXPECT_EQ(Sample(logits, usual), Sample(logits, listed)) << round;
  }
}

TEST(SamplerChainTest, TheOrderMatters) {
  // Probabilities 0.5, 0.25, 0.125 ... at temperature 1; flat at temperature 100.
  std::vector<float> logits;
  for (int i = 0; i < 10; ++i) {
    logits.push_back(-0.7F * static_cast<float>(i));
  }
  SamplingParams params;
  params.temperature = 100;
  params.top_p = 0.6;
  const auto drawn = [&](std::vector<SamplerKind> order) {
    params.samplers = std::move(order);
    std::set<std::int32_t> tokens;
    for (std::int64_t position = 0; position < 300; ++position) {
      tokens.insert(Sample(logits, params, position));
    }
    return tokens.size();
  };
  EXPECT_EQ(drawn({SamplerKind::kTopP, SamplerKind::kTemperature}), 2U);
  EXPECT_EQ(drawn({SamplerKind::kTemperature, SamplerKind::kTopP}), 6U);
  EXPECT_EQ(drawn({SamplerKind::kTemperature}), 10U) << "what is not listed is not done";
}

TEST(SamplerChainTest, XtcComesAsOftenAsItIsAskedFor) {
  const std::vector<float> logits{5, 4.5F, 0, 0, 0, 0};
  SamplingParams params;
  params.xtc_probability = 0.3;
  params.xtc_threshold = 0.2;
  int excluded = 0;
  constexpr int kDraws = 4000;
  for (int position = 0; position < kDraws; ++position) {
    SamplingParams never = params;
    never.xtc_probability = 1e-12;
    // Token 0 would have been drawn, but is left out.
    excluded +=
        Sample(logits, never, position) == 0 && Sample(logits, params, position) != 0 ? 1 : 0;
  }
  int zeros = 0;
  for (int position = 0; position < kDraws; ++position) {
    SamplingParams never = params;
    never.xtc_probability = 1e-12;
    zeros += Sample(logits, never, position) == 0 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(excluded) / zeros, 0.3, 0.03)
      << "the number that decides is independent of the draw's";
}

TEST(SamplerChainTest, XtcLeavesASingleTopChoice) {
  const std::vector<float> logits{8, 1, 1, 1};
  SamplingParams params;
  params.xtc_probability = 1;
  params.xtc_threshold = 0.1;
  for (std::int64_t position = 0; position < 50; ++position) {
    EXPECT_EQ(Sample(logits, params, position), 0);
  }
}

TEST(SamplerChainTest, ForbiddenTokensStayOut) {
  SamplingParams params;
  params.typical_p = 0.95;
  params.temperature = 5;
  params.allowed_tokens = {3, 7};
  for (std::int64_t position = 0; position < 200; ++position) {
    const std::int32_t token = Sample(RandomLogits(100, 1), params, position);
    EXPECT_TRUE(token == 3 || token == 7) << token;
  }
}

TEST(SamplerChainTest, GreedyIsGreedy) {
  SamplingParams params;
  params.temperature = 0;
  params.xtc_probability = 1;
  params.typical_p = 0.1;
  EXPECT_EQ(Sample({1, 3, 2.9F}, params), 1);
}

}  // namespace
}  // namespace inferd::model
