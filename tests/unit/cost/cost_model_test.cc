// SPDX-License-Identifier: Apache-2.0
// The cost model against sums made by hand.
#include "cost/cost_model.h"

#include "unit/spec/real_models.h"

#include <gtest/gtest.h>

#include <cmath>

namespace inferd::cost {
namespace {

DeviceProfile Device() {
  DeviceProfile device;
  device.memory_bytes = 80LL << 30;
  device.bandwidth = 2e12;
  device.flops_16bit = 300e12;
  device.flops_8bit = 600e12;
  device.peer = {"peer", 300e9, 4e-6};
  device.domain_devices = 8;
  device.host = {"host", 26e9, 8e-6};
  device.network = {"network", 25e9, 12e-6};
  device.efficiency = {.weights = 0.5,
                       .kv = 0.8,
                       .flops = 0.5,
                       .attention = 0.25,
                       .link = 0.5,
                       .step_s = 1e-4,
                       .row_s = 1e-6};
  return device;
}

std::vector<StageCost> Stages(const spec::ModelSpec& model, const spec::ParallelSpec& parallel) {
  const auto shards = spec::PlanShards(model, parallel, {});
  EXPECT_TRUE(shards.ok());
  return MakeStages(model, *shards, 2, 2, Device());
}

StepTime Time(const StageCost& stage, std::int64_t start, std::int64_t count) {
  StepWork work;
  AddWork(stage, start, count, true, &work);
  return TimeOf(stage, work, Device(), {});
}

TEST(CostModel, ADecodeStepReadsTheWeightsAndTheKv) {
  const auto stages = Stages(spec::Llama3_8B(), {});
  ASSERT_EQ(stages.size(), 1U);
  // All but the embedding's table: 8,030,261,248 - 128256 * 4096 parameters.
  const double bytes = 2.0 * (8'030'261'248 - 128'256LL * 4096);
  EXPECT_DOUBLE_EQ(stages[0].dense_bytes, bytes);
  const StepTime time = Time(stages[0], 999, 1);
  EXPECT_DOUBLE_EQ(time.weights, bytes / (2e12 * 0.5));
  EXPECT_EQ(time.matrices, 0);
  EXPECT_DOUBLE_EQ(time.kv, 1000 * 131'072 / (2e12 * 0.8));
  EXPECT_EQ(time.collectives, 0);
  EXPECT_DOUBLE_EQ(time.overhead, 1e-4 + 1e-6);
  EXPECT_DOUBLE_EQ(time.total, time.weights + time.kv + time.overhead);
}

TEST(CostModel, APromptMultipliesAndSeesItselfCausally) {
  const auto stages = Stages(spec::Llama3_8B(), {});
  const StepTime time = Time(stages[0], 0, 2000);
  const double dense = 2.0 * (8'030'261'248 - 2 * 128'256LL * 4096);
  const double head = 2.0 * 128'256 * 4096;
  EXPECT_EQ(time.weights, 0);
  EXPECT_NEAR(time.matrices, (2000 * dense + head) / (300e12 * 0.5), 1e-9);
  const double pairs = 2000.0 * 2001 / 2;
  EXPECT_NEAR(time.attention, pairs * 4 * 4096 * 32 / (300e12 * 0.25), 1e-12);
  // Two halves see the same pairs.
  StepWork halves;
  AddWork(stages[0], 0, 1000, false, &halves);
  AddWork(stages[0], 1000, 1000, true, &halves);
  EXPECT_NEAR(halves.attention_flops, pairs * 4 * 4096 * 32, 1e6);
}

TEST(CostModel, TensorParallelRanksShareReadingAndPayForReductions) {
  const auto one = Stages(spec::Llama3_70B(), {});
  const auto four = Stages(spec::Llama3_70B(), {.tp = 4});
  EXPECT_NEAR(four[0].dense_bytes, one[0].dense_bytes / 4, 0.001 * one[0].dense_bytes);
  const StepTime time = Time(four[0], 99, 1);
  const double reduction = 2 * 4e-6 + 2 * 0.75 * 8192 * 2 / (300e9 * 0.5);
  const double gather = 4e-6 * 1.4 + 0.75 * 128'256 * 4 / (300e9 * 0.5);
  EXPECT_NEAR(time.collectives, 160 * reduction + gather, 1e-9);
  StepWork work;
  AddWork(four[0], 99, 1, true, &work);
  ReplicaLinks apart;
  apart.tp = Reach::kNetwork;
  EXPECT_GT(TimeOf(four[0], work, Device(), apart).collectives, 2 * time.collectives);
}

TEST(CostModel, StagesHandOverAndExpertsAreReadAsTheyAreAskedFor) {
  const auto stages = Stages(spec::Llama3_70B(), {.pp = 2});
  ASSERT_EQ(stages.size(), 2U);
  EXPECT_GT(Time(stages[0], 0, 1).handover, 0);
  EXPECT_EQ(Time(stages[1], 0, 1).handover, 0);
  EXPECT_EQ(stages[0].head_flops, 0);

  const auto moe = Stages(spec::Mixtral_8x7B(), {});
  const double per_layer = 8.0;
  StepWork one;
  AddWork(moe[0], 0, 1, true, &one);
  StepWork many;
  for (int i = 0; i < 64; ++i) {
    AddWork(moe[0], 0, 1, true, &many);
  }
  EXPECT_EQ(moe[0].experts_held, 32 * per_layer);
  const double expert = 3.0 * 4096 * 14'336 * 2;
  EXPECT_NEAR(moe[0].expert_bytes, expert, 1);
  // One token takes two experts of a layer; 64 take nearly all.
  const double alone = moe[0].dense_bytes + 32 * 2 * expert;
  EXPECT_NEAR(TimeOf(moe[0], one, Device(), {}).weights, alone / 1e12, 1e-6);
  const double all = moe[0].dense_bytes + 32 * 8 * expert;
  EXPECT_NEAR(TimeOf(moe[0], many, Device(), {}).weights, all / 1e12, 1e-5);
  // The same tokens cost a rank the same multiplications however the experts are dealt.
  const auto dealt = Stages(spec::Mixtral_8x7B(), {.ep = 4});
  EXPECT_NEAR(dealt[0].expert_flops, moe[0].expert_flops, 1);
  EXPECT_GT(TimeOf(dealt[0], one, Device(), {}).collectives, 0);
}

TEST(CostModel, WidthOfTheWeightsChoosesThePeak) {
  DeviceProfile device = Device();
  EXPECT_EQ(PeakFlops(device, 2), 300e12);
  EXPECT_EQ(PeakFlops(device, 1.06), 600e12);
  EXPECT_EQ(PeakFlops(device, 0.56), 300e12);  // widened to 16 bits
  device.native_4bit = true;
  EXPECT_EQ(PeakFlops(device, 0.56), 600e12);
  device.flops_8bit = 0;
  EXPECT_EQ(PeakFlops(device, 1), 300e12);
}

}  // namespace
}  // namespace inferd::cost
