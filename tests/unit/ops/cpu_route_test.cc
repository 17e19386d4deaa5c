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

}  // namespace
}  // namespace inferd::ops
