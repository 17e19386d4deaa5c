// SPDX-License-Identifier: Apache-2.0
#include "model/router.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace inferd::model {
namespace {

spec::MoeSpec Moe(std::int64_t experts, std::int64_t top_k) {
  spec::MoeSpec moe;
  moe.num_experts = experts;
  moe.top_k = top_k;
  return moe;
}

TEST(RouterTest, BestFirstAndTiesToTheLowestExpert) {
  const std::array<float, 6> logits = {1, 3, 2, 3, 3, 0};
  std::array<std::int32_t, 4> expert{};
  std::array<float, 4> weight{};
  RouteTokens(Moe(6, 4), logits.data(), 1, expert.data(), weight.data());
  EXPECT_EQ(expert, (std::array<std::int32_t, 4>{1, 3, 4, 2}));
  EXPECT_FLOAT_EQ(weight[0], weight[2]);
  EXPECT_NEAR(weight[0] + weight[1] + weight[2] + weight[3], 1, 1e-6);
}

TEST(RouterTest, WithoutRenormalisingWeightsAreSharesOfAll) {
  spec::MoeSpec moe = Moe(3, 2);
  moe.renormalize = false;
  moe.routed_scale = 2;
  const std::array<float, 3> logits = {0, std::log(2.0F), std::log(5.0F)};
  std::array<std::int32_t, 2> expert{};
  std::array<float, 2> weight{};
  RouteTokens(moe, logits.data(), 1, expert.data(), weight.data());
  EXPECT_EQ(expert, (std::array<std::int32_t, 2>{2, 1}));
  EXPECT_NEAR(weight[0], 2 * 5.0 / 8, 1e-6);
  EXPECT_NEAR(weight[1], 2 * 2.0 / 8, 1e-6);
}

TEST(RouterTest, SigmoidScores) {
  spec::MoeSpec moe = Moe(2, 2);
  moe.score = spec::RouterScore::kSigmoid;
  moe.renormalize = false;
  const std::array<float, 4> logits = {0, 1, -1, -3};
  std::array<std::int32_t, 4> expert{};
  std::array<float, 4> weight{};
  RouteTokens(moe, logits.data(), 2, expert.data(), weight.data());
  EXPECT_EQ(expert, (std::array<std::int32_t, 4>{1, 0, 0, 1}));
  EXPECT_NEAR(weight[0], 1 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_NEAR(weight[1], 0.5, 1e-6);
  EXPECT_NEAR(weight[3], 1 / (1 + std::exp(3.0)), 1e-6);
}

}  // namespace
}  // namespace inferd::model
