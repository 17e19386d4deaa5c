// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate.h"

#include "plan/layouts.h"
#include "plan/simulate_report.h"
#include "unit/spec/real_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace inferd::plan {
namespace {

using testing::HasSubstr;

SimulateOptions Options(int tp, int pp, int replicas) {
  LayoutRequest request;
  request.model = spec::Llama3_8B();
  const auto table = cost::DeviceTable::Load("");
  EXPECT_TRUE(table.ok());
  request.cluster.device = *table->Find("H100");
  request.cluster.per_node = 8;
  request.tp = tp;
  request.pp = pp;
  const auto plan = PlanLayouts(request);
  EXPECT_TRUE(plan.ok());
  SimulateOptions options;
  options.replica = plan->layouts[0].model;
  options.replicas = replicas;
  return options;
}

std::vector<TraceRequest> Trace(std::int64_t requests, double rate, double spread = 0.5) {
  return MakeTrace(
      {.requests = requests, .rate = rate, .input = 500, .output = 100, .spread = spread});
}

SimulateResult RunAll(const SimulateOptions& options, const std::vector<TraceRequest>& trace) {
  auto result = Simulate(options, trace);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message());
  return result.ok() ? *result : SimulateResult();
}

TEST(Simulate, OneRequestTakesWhatTheModelSays) {
  const SimulateOptions options = Options(1, 1, 1);
  const SimulateResult result =
      RunAll(options, {{.arrival_s = 0, .input_tokens = 1000, .output_tokens = 101}});
  const Prediction alone = PredictAlone(options.replica, {1000, 101});
  EXPECT_EQ(result.completed, 1);
  EXPECT_NEAR(result.ttft_s.mean, alone.ttft_s, 0.02 * alone.ttft_s);
  EXPECT_NEAR(result.tpot_s.mean, alone.tpot_s, 0.02 * alone.tpot_s);
}

TEST(Simulate, AgreesWithTheFormulasUnderLoad) {
  for (const int pp : {1, 2}) {
    const SimulateOptions options = Options(1, pp, 1);
    const double rate = 0.5 * MaxRate(options.replica, {500, 100}, {});
    const SimulateResult result = RunAll(options, Trace(3000, rate, 0));
    const Prediction at = Predict(options.replica, {500, 100}, rate);
    EXPECT_EQ(result.completed, 3000);
    EXPECT_NEAR(result.tpot_s.mean, at.tpot_s, 0.15 * at.tpot_s) << "pp " << pp;
    EXPECT_NEAR(result.ttft_s.mean, at.ttft_s, 0.5 * at.ttft_s) << "pp " << pp;
  }
}

TEST(Simulate, IsDeterministicAndLosesNothing) {
  const SimulateOptions options = Options(2, 1, 3);
  const auto trace = Trace(2000, 40);
  const SimulateResult a = RunAll(options, trace);
  const SimulateResult b = RunAll(options, trace);
  EXPECT_EQ(a.completed, 2000);
  EXPECT_EQ(a.refused, 0);
  EXPECT_EQ(a.steps, b.steps);
  EXPECT_EQ(a.ttft_s.p99, b.ttft_s.p99);
}

TEST(Simulate, ALostNodeIsTakenOverBySpares) {
  SimulateOptions options = Options(1, 1, 3);
  options.node_of_replica = {0, 1, 2};
  const auto trace = Trace(3000, 30);
  options.lose_node_at_s = 40;
  const SimulateResult bare = RunAll(options, trace);
  EXPECT_GT(bare.retried, 0);
  EXPECT_EQ(bare.completed + bare.refused, 3000);
  options.replicas = 4;
  options.node_of_replica = {0, 1, 2, 3};
  options.spares = 1;
  options.cold_start_s = 30;
  const SimulateResult cold = RunAll(options, trace);
  options.prewarmed = true;
  const SimulateResult warm = RunAll(options, trace);
  EXPECT_LE(warm.latency_s.mean, cold.latency_s.mean);
  EXPECT_LT(warm.latency_s.mean, bare.latency_s.mean);
}

TEST(Simulate, AutoscalingPaysForFewerReplicaHours) {
  SimulateOptions options = Options(1, 1, 4);
  options.max_waiting = 100'000;
  auto trace = Trace(4000, 60);
  const auto quiet = Trace(300, 0.5);
  const double end_s = trace.back().arrival_s;
  for (TraceRequest request : quiet) {
    request.arrival_s += end_s;
    trace.push_back(request);
  }
  const SimulateResult all = RunAll(options, trace);
  options.autoscale.min_replicas = 1;
  options.cold_start_s = 10;
  options.autoscale.down_delay_s = 60;
  const SimulateResult scaled = RunAll(options, trace);
  EXPECT_EQ(scaled.completed, 4300);
  EXPECT_LT(scaled.replica_hours, 0.8 * all.replica_hours);
  EXPECT_GE(scaled.ttft_s.p99, all.ttft_s.p99);
}

TEST(Simulate, SharedPrefixesAreFoundWhereTheyWentBefore) {
  const SimulateOptions options = Options(1, 1, 4);
  const auto trace = MakeTrace({.requests = 1000,
                                .rate = 20,
                                .input = 1000,
                                .output = 20,
                                .spread = 0.2,
                                .prefixes = 4,
                                .prefix_share = 0.6});
  const SimulateResult result = RunAll(options, trace);
  EXPECT_GT(result.prefix_hit, 0.4);
}

TEST(Simulate, FindsTheKnee) {
  SimulateOptions options = Options(1, 1, 1);
  options.targets = {1.0, 0.03};
  const auto trace = Trace(400, 5);
  const auto knee = FindKnee(options, trace, 0.9, 400);
  ASSERT_TRUE(knee.ok());
  EXPECT_GT(knee->rate, 1);
  EXPECT_GE(knee->at.attained, 0.9);
  EXPECT_LT(knee->tried.back().second, 0.9);
  const std::string text = DescribeSimulation({{"tp 1", 1, 0, knee->at, *knee}}, 0.9);
  EXPECT_THAT(text, HasSubstr("knee:"));
  EXPECT_THAT(SimulationJson({{"tp 1", 1, 0, knee->at, *knee}}, 0.9), HasSubstr("\"ttft_ms\""));
}

TEST(Simulate, RefusesWhatCannotBe) {
  SimulateOptions options = Options(1, 1, 1);
  EXPECT_FALSE(Simulate(options, {}).ok());
  const auto trace = Trace(1, 1);
  options.replicas = 65;
  EXPECT_FALSE(Simulate(options, trace).ok());
  options.replicas = 2;
  options.spares = 2;
  EXPECT_FALSE(Simulate(options, trace).ok());
}

TEST(Trace, LinesAreCheckedByName) {
  EXPECT_TRUE(
      ParseTraceLine("f", R"({"arrival_s": 1, "input_tokens": 2, "output_tokens": 3})").ok());
  const struct {
    const char* line;
    const char* says;
  } cases[] = {
      {"[]", "not a JSON object"},
      {R"({"arrival_s": "1", "input_tokens": 2, "output_tokens": 3})", "arrival_s"},
      {R"({"arrival_s": -1, "input_tokens": 2, "output_tokens": 3})", "arrival_s"},
      {R"({"arrival_s": 1, "input_tokens": 0, "output_tokens": 3})", "input_tokens"},
      {R"({"arrival_s": 1, "input_tokens": 2.5, "output_tokens": 3})", "input_tokens"},
      {R"({"arrival_s": 1, "input_tokens": 2, "output_tokens": 1e99})", "output_tokens"},
      {R"({"arrival_s": 1, "input_tokens": 2, "output_tokens": 3, "prefix_id": 1, "prefix_tokens": 9})",
       "prefix_tokens"},
  };
  for (const auto& one : cases) {
    const auto request = ParseTraceLine("f: line 1", one.line);
    ASSERT_FALSE(request.ok()) << one.line;
    EXPECT_THAT(request.error().message(), HasSubstr(one.says)) << one.line;
  }
}

TEST(Trace, WhatIsWrittenIsReadBack) {
  const std::string path = testing::TempDir() + "trace.jsonl";
  const auto trace = MakeTrace({.requests = 200, .rate = 3, .prefixes = 3});
  ASSERT_TRUE(WriteTrace(trace, path).ok());
  const auto read = ReadTrace(path);
  ASSERT_TRUE(read.ok()) << read.error().message();
  ASSERT_EQ(read->size(), 200U);
  EXPECT_EQ((*read)[7].input_tokens, trace[7].input_tokens);
  EXPECT_EQ((*read)[7].prefix_id, trace[7].prefix_id);
  EXPECT_NEAR((*read)[199].arrival_s, trace[199].arrival_s, 1e-5);
  EXPECT_NEAR(trace[199].arrival_s, 200 / 3.0, 15);
  EXPECT_FALSE(ReadTrace(path + ".absent").ok());
}

}  // namespace
}  // namespace inferd::plan
