// SPDX-License-Identifier: Apache-2.0
// Frequencies against values worked out by hand; the families' golden logits compare the kinds with
// transformers.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace inferd::model {
namespace {

using spec::RopeKind;
using spec::RopeSpec;

RopeSpec Rope(RopeKind kind) {
  RopeSpec rope;
  rope.kind = kind;
  rope.rotary_dim = 8;
  rope.theta = 10000;
  return rope;
}

TEST(RopeTest, DefaultFrequenciesArePowersOfTheta) {
  const RopeFrequencies f = MakeRopeFrequencies(Rope(RopeKind::kDefault), 100);
  ASSERT_EQ(f.inverse.size(), 4U);
  EXPECT_FLOAT_EQ(f.inverse[0], 1);
  EXPECT_FLOAT_EQ(f.inverse[1], 0.1F);
  EXPECT_FLOAT_EQ(f.inverse[3], 0.001F);
  EXPECT_EQ(f.scale, 1);
}

TEST(RopeTest, LinearDividesAll) {
  RopeSpec rope = Rope(RopeKind::kLinear);
  rope.factor = 4;
  EXPECT_FLOAT_EQ(MakeRopeFrequencies(rope, 100).inverse[1], 0.025F);
}

TEST(RopeTest, DynamicChangesOnlyBeyondTheTrainedLength) {
  RopeSpec rope = Rope(RopeKind::kDynamic);
  rope.factor = 2;
  rope.original_max_position = 64;
  EXPECT_FLOAT_EQ(MakeRopeFrequencies(rope, 64).inverse[3], 0.001F);
  const double theta = 10000 * std::pow(2.0 * 128 / 64 - 1, 8.0 / 6);
  EXPECT_NEAR(MakeRopeFrequencies(rope, 128).inverse[3], std::pow(theta, -0.75), 1e-8);
}

TEST(RopeTest, Llama3KeepsShortWavesAndDividesLongOnes) {
  RopeSpec rope = Rope(RopeKind::kLlama3);
  rope.factor = 8;
  rope.original_max_position = 512;  // waves: below 128 stay, above 512 are divided
  const RopeFrequencies f = MakeRopeFrequencies(rope, 4096);
  EXPECT_FLOAT_EQ(f.inverse[0], 1);
  EXPECT_FLOAT_EQ(f.inverse[1], 0.1F);
  EXPECT_FLOAT_EQ(f.inverse[3], 0.001F / 8);
  rope.original_max_position = 1600;  // the wave of 2 pi / 0.01 = 628 lies between 400 and 1600
  const double smooth = (1600 / (200 * std::numbers::pi) - 1) / 3;
  EXPECT_NEAR(
      MakeRopeFrequencies(rope, 4096).inverse[2], (1 - smooth) * 0.01 / 8 + smooth * 0.01, 1e-8);
}

TEST(RopeTest, LongRopePicksFactorsByModelLength) {
  RopeSpec rope = Rope(RopeKind::kLongRope);
  rope.original_max_position = 16;
  rope.factor = 4;
  rope.short_factors = {1, 1, 1, 1};
  rope.long_factors = {2, 2, 2, 4};
  const RopeFrequencies near = MakeRopeFrequencies(rope, 16);
  const RopeFrequencies far = MakeRopeFrequencies(rope, 17);
  EXPECT_FLOAT_EQ(near.inverse[3], 0.001F);
  EXPECT_FLOAT_EQ(far.inverse[3], 0.00025F);
  EXPECT_FLOAT_EQ(near.scale, static_cast<float>(std::sqrt(1 + std::log(4) / std::log(16))));
  EXPECT_FLOAT_EQ(far.scale, near.scale);
}

TEST(RopeTest, YarnScale) {
  RopeSpec rope = Rope(RopeKind::kYarn);
  rope.original_max_position = 16;
  rope.factor = 4;
  EXPECT_NEAR(MakeRopeFrequencies(rope, 64).scale, 1 + 0.1 * std::log(4), 1e-6);
  rope.mscale = 2;
  rope.mscale_all_dim = 1;
  EXPECT_NEAR(
      MakeRopeFrequencies(rope, 64).scale, (1 + 0.2 * std::log(4)) / (1 + 0.1 * std::log(4)), 1e-6);
  rope.attention_factor = 1.5;
  EXPECT_FLOAT_EQ(MakeRopeFrequencies(rope, 64).scale, 1.5F);
}

TEST(RopeTest, TablesHoldCosineAndSineOfEveryPosition) {
  spec::ModelSpec model;
  model.head_dim = 16;
  model.ropes = {Rope(RopeKind::kDefault)};
  const auto device = ops::MakeCpuDevice({.threads = 1, .cpus = {}}).value();
  auto tables = RopeTables::Make(model, 50, *device);
  ASSERT_TRUE(tables.ok());
  const ops::RopeTable& table = tables->table(0);
  EXPECT_EQ(table.rotary_dim, 8);
  EXPECT_NEAR(table.cos[49 * 4 + 1], std::cos(4.9), 1e-6);
  EXPECT_NEAR(table.sin[49 * 4 + 2], std::sin(0.49), 1e-6);
  model.head_dim = 4;
  EXPECT_FALSE(RopeTables::Make(model, 50, *device).ok());
}

}  // namespace
}  // namespace inferd::model
