// SPDX-License-Identifier: Apache-2.0
// A profile is found again from times that the model itself has made, and its text is read back.
#include "cost/fit_profile.h"

#include "unit/spec/real_models.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace inferd::cost {
namespace {

DeviceProfile BuiltIn(const std::string& name) {
  const auto table = DeviceTable::Load("");
  EXPECT_TRUE(table.ok());
  return *table->Find(name);
}

Measured Made(const DeviceProfile& device) {
  const spec::ModelSpec model = spec::Llama3_8B();
  const auto shards = spec::PlanShards(model, {}, {});
  EXPECT_TRUE(shards.ok());
  Measured measured;
  measured.stage = MakeStages(model, *shards, 2, 2, device).front();
  measured.bytes_per_weight = 2;
  measured.observations = {
      {0, 512, 0}, {0, 2048, 0}, {1, 160, 0}, {8, 160, 0}, {32, 160, 0}, {8, 4096, 0}};
  for (Observation& one : measured.observations) {
    one.seconds = PredictSeconds(measured, one, device);
  }
  return measured;
}

TEST(FitProfile, FindsTheDeviceThatMadeTheTimes) {
  DeviceProfile device = BuiltIn("L40S");
  device.efficiency.step_s = 900e-6;
  device.efficiency.row_s = 40e-6;
  const Measured measured = Made(device);
  const auto fitted = FitProfile(BuiltIn("H100"), measured);
  ASSERT_TRUE(fitted.ok()) << fitted.error().message();
  EXPECT_LT(fitted->worst_error, 0.02);
  const auto rate = [](const DeviceProfile& of) { return of.bandwidth * of.efficiency.weights; };
  // The shares of weights and KV in the bandwidth stay those of an H100.
  EXPECT_NEAR(rate(fitted->device) / rate(device), 1, 0.06);
  const auto flops = [](const DeviceProfile& of) { return of.flops_16bit * of.efficiency.flops; };
  EXPECT_NEAR(flops(fitted->device) / flops(device), 1, 0.05);
  // It predicts what was not measured, too.
  const Observation other{.streams = 16, .context = 1000};
  EXPECT_NEAR(
      PredictSeconds(measured, other, fitted->device) / PredictSeconds(measured, other, device),
      1,
      0.03);
}

TEST(FitProfile, EfficienciesStayShares) {
  DeviceProfile fast = BuiltIn("cpu");
  fast.bandwidth *= 10;
  fast.flops_16bit *= 10;
  const auto fitted = FitProfile(BuiltIn("cpu"), Made(fast));
  ASSERT_TRUE(fitted.ok()) << fitted.error().message();
  const Efficiency& of = fitted->device.efficiency;
  for (const double share : {of.weights, of.kv, of.flops, of.attention}) {
    EXPECT_GE(share, 0.01);
    EXPECT_LE(share, 1);
  }
  EXPECT_GT(fitted->device.bandwidth, BuiltIn("cpu").bandwidth * 5);
  EXPECT_GT(fitted->device.flops_16bit, BuiltIn("cpu").flops_16bit * 5);
}

TEST(FitProfile, NeedsBothPhases) {
  Measured measured = Made(BuiltIn("H100"));
  measured.observations.resize(2);
  EXPECT_FALSE(FitProfile(BuiltIn("H100"), measured).ok());
  measured.observations.clear();
  EXPECT_FALSE(FitProfile(BuiltIn("H100"), measured).ok());
}

TEST(FitProfile, WhatNoDeviceDoesIsRefused) {
  Measured measured = Made(BuiltIn("H100"));
  for (Observation& one : measured.observations) {
    one.seconds *= one.streams > 0 ? 1e6 : 1;
  }
  EXPECT_FALSE(FitProfile(BuiltIn("H100"), measured).ok());
}

TEST(ProfileYaml, IsReadBackTheSame) {
  const auto table = DeviceTable::Load("");
  ASSERT_TRUE(table.ok());
  for (const DeviceProfile& device : table->profiles()) {
    const auto read = DeviceTable::Parse("text", ProfileYaml(device));
    ASSERT_TRUE(read.ok()) << read.error().message();
    const DeviceProfile& same = read->profiles().front();
    EXPECT_EQ(same.name, device.name);
    EXPECT_EQ(same.gpu, device.gpu);
    EXPECT_EQ(same.memory_bytes, device.memory_bytes);
    EXPECT_EQ(same.native_4bit, device.native_4bit);
    EXPECT_EQ(same.domain_devices, device.domain_devices);
    EXPECT_EQ(same.peer.name, device.peer.name);
    EXPECT_EQ(same.sources, device.sources);
    const auto near = [&](double a, double b) {
      EXPECT_NEAR(a, b, std::abs(b) * 1e-3) << device.name;
    };
    near(same.bandwidth, device.bandwidth);
    near(same.flops_16bit, device.flops_16bit);
    near(same.flops_8bit, device.flops_8bit);
    near(same.network.bytes_per_s, device.network.bytes_per_s);
    near(same.host.latency_s, device.host.latency_s);
    near(same.efficiency.weights, device.efficiency.weights);
    near(same.efficiency.attention, device.efficiency.attention);
    near(same.efficiency.row_s, device.efficiency.row_s);
    near(same.price_per_hour, device.price_per_hour);
  }
}

TEST(ProfileYaml, TextsMayHoldAnything) {
  DeviceProfile device = BuiltIn("H100");
  device.sources = {"inferd bench \"my\\model\": a\tb # c"};
  const auto read = DeviceTable::Parse("text", ProfileYaml(device));
  ASSERT_TRUE(read.ok()) << read.error().message();
  EXPECT_EQ(read->profiles().front().sources, device.sources);
}

}  // namespace
}  // namespace inferd::cost
