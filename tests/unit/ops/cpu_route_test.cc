// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu_route.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace inferd::ops {
namespace {

RouteTask Task(std::int64_t experts, std::int64_t top_k) {
  RouteTask task;
  task.experts = experts;
  task.top_k = top_k;
  return task;
}

void Route(
    RouteTask task, const float* logits, std::int64_t rows, std::int32_t* expert, float* weight) {
  task.logits = logits;
  task.rows = rows;
  task.expert = expert;
  task.weight = weight;
  RouteTokens(task);
}

TEST(RouterTest, BestFirstAndTiesToTheLowestExpert) {
  const std::array<float, 6> logits = {1, 3, 2, 3, 3, 0};
  std::array<std::int32_t, 4> expert{};
  std::array<float, 4> weight{};
  Route(Task(6, 4), logits.data(), 1, expert.data(), weight.data());
  EXPECT_EQ(expert, (std::array<std::int32_t, 4>{1, 3, 4, 2}));
  EXPECT_FLOAT_EQ(weight[0], weight[2]);
  EXPECT_NEAR(weight[0] + weight[1] + weight[2] + weight[3], 1, 1e-6);
}

TEST(RouterTest, WithoutRenormalisingWeightsAreSharesOfAll) {
  RouteTask task = Task(3, 2);
  task.renormalize = false;
  task.routed_scale = 2;
  const std::array<float, 3> logits = {0, std::log(2.0F), std::log(5.0F)};
  std::array<std::int32_t, 2> expert{};
  std::array<float, 2> weight{};
  Route(task, logits.data(), 1, expert.data(), weight.data());
  EXPECT_EQ(expert, (std::array<std::int32_t, 2>{2, 1}));
  EXPECT_NEAR(weight[0], 2 * 5.0 / 8, 1e-6);
  EXPECT_NEAR(weight[1], 2 * 2.0 / 8, 1e-6);
}

TEST(RouterTest, SigmoidScores) {
  RouteTask task = Task(2, 2);
  task.sigmoid = true;
  task.renormalize = false;
  const std::array<float, 4> logits = {0, 1, -1, -3};
  std::array<std::int32_t, 4> expert{};
  std::array<float, 4> weight{};
  Route(task, logits.data(), 2, expert.data(), weight.data());
  EXPECT_EQ(expert, (std::array<std::int32_t, 4>{1, 0, 0, 1}));
  EXPECT_NEAR(weight[0], 1 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(weight[1], 0.5, 1e-6);
  EXPECT_NEAR(weight[3], 1 / (1 + std::exp(3.0)), 1e-6);
}

TEST(RouterTest, ABiasDecidesTheChoiceButNotTheWeights) {
  RouteTask task = Task(4, 2);
  task.sigmoid = true;
  const std::array<float, 4> logits = {0, 1, 2, -1};
  const std::array<float, 4> bias = {0.5F, 0, -1, 0.5F};
  task.bias = bias.data();
  std::array<std::int32_t, 2> expert{};
  std::array<float, 2> weight{};
  Route(task, logits.data(), 1, expert.data(), weight.data());
  // 1.0, 0.731, -0.119 and 0.769 with the bias.
  EXPECT_EQ(expert, (std::array<std::int32_t, 2>{0, 3}));
  const double scores[] = {0.5, 1 / (1 + std::exp(1.0))};
  EXPECT_NEAR(weight[0], scores[0] / (scores[0] + scores[1]), 1e-6);
  EXPECT_NEAR(weight[1], scores[1] / (scores[0] + scores[1]), 1e-6);
}

TEST(RouterTest, OnlyExpertsOfTheBestGroupsAreChosen) {
  RouteTask task = Task(6, 2);
  task.renormalize = false;
  task.groups = 3;
  task.top_groups = 1;
  const std::array<float, 6> logits = {4, 0, 3, 2.5F, 1, 1};
  std::array<std::int32_t, 2> expert{};
  std::array<float, 2> weight{};
  Route(task, logits.data(), 1, expert.data(), weight.data());
  EXPECT_EQ(expert, (std::array<std::int32_t, 2>{0, 1})) << "the group of the best expert";
  double all = 0;
  for (const float logit : logits) {
    all += std::exp(logit);
  }
  EXPECT_NEAR(weight[0], std::exp(4.0) / all, 1e-6) << "a share of all experts";
  task.sigmoid = true;
  task.group_best = 2;
  Route(task, logits.data(), 1, expert.data(), weight.data());
  EXPECT_EQ(expert, (std::array<std::int32_t, 2>{2, 3})) << "the group of the best two";
}

}  // namespace
}  // namespace inferd::ops
