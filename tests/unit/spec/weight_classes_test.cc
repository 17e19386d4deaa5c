// SPDX-License-Identifier: Apache-2.0
#include "spec/weight_classes.h"

#include "unit/spec/real_models.h"

#include <gtest/gtest.h>

namespace inferd::spec {
namespace {

TEST(WeightClasses, SplitWhatAShardHolds) {
  const ModelSpec model = Llama3_70B();
  const auto shards = PlanShards(model, {.tp = 4}, {});
  ASSERT_TRUE(shards.ok());
  const WeightClasses shard = ShardWeights(model, (*shards)[0]);
  EXPECT_EQ(shard.embedding, 128'256LL / 4 * 8192);
  EXPECT_EQ(shard.head, shard.embedding);
  EXPECT_EQ(shard.ffn, 80LL * 3 * 8192 * 28'672 / 4);
  EXPECT_EQ(shard.attention, 80LL * 8192 * (2 * 64 + 2 * 8) * 128 / 4);
  EXPECT_EQ(shard.experts, 0);
  EXPECT_EQ(shard.other, (2 * 80 + 1) * 8192LL);
}

TEST(WeightClasses, ExpertsAreCountedWhereTheyAreHeld) {
  const ModelSpec model = Mixtral_8x7B();
  const auto shards = PlanShards(model, {.ep = 4}, {});
  ASSERT_TRUE(shards.ok());
  const WeightClasses shard = ShardWeights(model, (*shards)[1]);
  EXPECT_EQ(shard.experts, 32LL * 2 * 3 * 4096 * 14'336);
  EXPECT_EQ(shard.ffn, 0);
}

}  // namespace
}  // namespace inferd::spec
