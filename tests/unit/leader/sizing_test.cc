// SPDX-License-Identifier: Apache-2.0
#include "leader/sizing.h"

#include <gtest/gtest.h>

namespace inferd::leader {
namespace {

spec::ModelSpec Model() {
  spec::ModelSpec model;
  model.vocab_size = 1024;
  model.hidden_size = 256;
  model.num_layers = 4;
  model.num_heads = 4;
  model.num_kv_heads = 4;
  model.head_dim = 64;
  model.intermediate_size = 512;
  model.max_position = 4096;
  model.ropes.resize(1);
  model.ropes[0].rotary_dim = 64;
  model.layers.resize(4);
  return model;
}

TEST(Sizing, WhatDevicesReallyKeepLeavesTheRestToTheKvCache) {
  const spec::ModelSpec model = Model();
  const auto shards = spec::PlanShards(model, {.tp = 2, .pp_partition = {}}, {});
  ASSERT_TRUE(shards.ok()) << shards.error().message();
  SizingInput input;
  input.model = &model;
  input.shards = &*shards;
  input.max_num_seqs = 8;
  input.device_bytes = 64 << 20;
  const auto counted = SizeKvCache(input);
  ASSERT_TRUE(counted.ok()) << counted.error().message();
  const std::int64_t page_bytes = counted->ledger.ranks[0].kv_bytes_per_token * 32;
  // The fullest rank decides.
  const std::int64_t first = counted->ledger.ranks[0].weight_bytes;
  input.weight_bytes = {first, first + 100 * page_bytes};
  const auto fuller = SizeKvCache(input);
  ASSERT_TRUE(fuller.ok()) << fuller.error().message();
  EXPECT_EQ(fuller->ledger.ranks[1].weight_bytes, input.weight_bytes[1]);
  EXPECT_NEAR(static_cast<double>(counted->kv_pages - fuller->kv_pages), 100, 1);
  // More than the device has: refused, though the count by parameters fits.
  input.weight_bytes = {first, input.device_bytes};
  EXPECT_FALSE(SizeKvCache(input).ok());
  input.weight_bytes = {first};
  EXPECT_FALSE(SizeKvCache(input).ok()) << "one number for two ranks";
}

}  // namespace
}  // namespace inferd::leader
