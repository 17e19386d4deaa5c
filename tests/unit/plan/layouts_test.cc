// SPDX-License-Identifier: Apache-2.0
#include "plan/layouts.h"

#include "plan/layout_report.h"
#include "unit/spec/real_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

namespace inferd::plan {
namespace {

using testing::HasSubstr;

LayoutRequest Request(const spec::ModelSpec& model, const char* device, int nodes, int per_node) {
  LayoutRequest request;
  request.model = model;
  const auto table = cost::DeviceTable::Load("");
  EXPECT_TRUE(table.ok());
  request.cluster.device = *table->Find(device);
  request.cluster.nodes = nodes;
  request.cluster.per_node = per_node;
  return request;
}

const Layout* Find(const LayoutPlan& plan, int tp, int pp) {
  const auto found = std::ranges::find_if(plan.layouts, [&](const Layout& layout) {
    return layout.parallel.tp == tp && layout.parallel.pp == pp;
  });
  return found == plan.layouts.end() ? nullptr : &*found;
}

// The article's example with the right figures: 32 A100, 70B in 16 bits, TP=4.
TEST(Layouts, ThirtyTwoA100CarryEightReplicasOfFour) {
  LayoutRequest request = Request(spec::Llama2_70B(), "A100-80G", 4, 8);
  request.tp = 4;
  request.pp = 1;
  const auto plan = PlanLayouts(request);
  ASSERT_TRUE(plan.ok()) << plan.error().message();
  const Layout* layout = Find(*plan, 4, 1);
  ASSERT_NE(layout, nullptr);
  EXPECT_EQ(layout->replicas, 8);
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  // 128.5 GiB of weights in four parts: 32.1 GiB a card are weights, not room for KV.
  EXPECT_NEAR(static_cast<double>(layout->ranks[0].ledger.weight_bytes) / kGiB, 32.1, 0.1);
  EXPECT_EQ(layout->ranks[0].ledger.kv_bytes_per_token, 80 * 1024);
  EXPECT_GT(layout->ranks[0].headroom, 0.45);
  EXPECT_LT(layout->ranks[0].headroom, 0.55);
  request.redundancy = 2;
  EXPECT_EQ(PlanLayouts(request)->layouts[0].replicas, 6);
  request.redundancy = 8;
  const auto none = PlanLayouts(request);
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().message(), HasSubstr("8 would be in reserve"));
}

TEST(Layouts, TensorGroupsStayInOneDomainAndNoDeviceIsUsedTwice) {
  LayoutRequest request = Request(spec::Llama3_70B(), "A100-80G", 4, 8);
  request.cluster.domains = {4, 4};
  const auto plan = PlanLayouts(request);
  ASSERT_TRUE(plan.ok()) << plan.error().message();
  for (const Layout& layout : plan->layouts) {
    std::set<std::pair<int, int>> used;
    const auto tp = static_cast<std::size_t>(layout.parallel.tp);
    for (std::size_t i = 0; i < layout.places.size(); ++i) {
      EXPECT_TRUE(used.insert({layout.places[i].node, layout.places[i].device}).second);
      if (tp <= 4) {
        EXPECT_EQ(layout.places[i].device / 4, layout.places[i - i % tp].device / 4);
      }
      EXPECT_EQ(layout.places[i].node, layout.places[i - i % tp].node);
    }
  }
  ASSERT_NE(Find(*plan, 8, 1), nullptr);
  EXPECT_EQ(Find(*plan, 8, 1)->links.tp, cost::Reach::kHost);
  EXPECT_EQ(Find(*plan, 4, 1)->links.tp, cost::Reach::kDomain);
  EXPECT_EQ(Find(*plan, 8, 2)->links.pp, cost::Reach::kNetwork);
}

TEST(Layouts, MigSlicesCarryReplicasOfOneRank) {
  const auto plan = PlanLayouts(Request(spec::Llama3_8B(), "A100-80G:1g.20gb", 2, 4));
  ASSERT_TRUE(plan.ok()) << plan.error().message();
  ASSERT_EQ(plan->layouts.size(), 1U);
  EXPECT_EQ(plan->layouts[0].replicas, 8);
  EXPECT_THAT(plan->rejected.front(), HasSubstr("MIG slices have no peer access"));
}

TEST(Layouts, WhatDoesNotFitSaysWhatWould) {
  const auto plan = PlanLayouts(Request(spec::Llama3_70B(), "A100-80G", 1, 1));
  ASSERT_FALSE(plan.ok());
  EXPECT_EQ(plan.error().code(), Code::kResourceExhausted);
  EXPECT_THAT(plan.error().message(), HasSubstr("2 devices of this kind"));
  EXPECT_THAT(plan.error().message(), HasSubstr("--weight-bits 8"));
}

TEST(Layouts, ExpertsAreDealtOnlyWhereThereAreSome) {
  const auto dense = PlanLayouts(Request(spec::Llama3_8B(), "H100", 1, 8));
  ASSERT_TRUE(dense.ok());
  for (const Layout& layout : dense->layouts) {
    EXPECT_EQ(layout.parallel.ep, 1);
  }
  const auto moe = PlanLayouts(Request(spec::Mixtral_8x7B(), "H100", 1, 8));
  ASSERT_TRUE(moe.ok());
  EXPECT_TRUE(
      std::ranges::any_of(moe->layouts, [](const Layout& l) { return l.parallel.ep == 4; }));
}

TEST(Layouts, TargetsAndRateDecideTheOrder) {
  LayoutRequest request = Request(spec::Llama3_70B(), "A100-80G", 4, 8);
  request.targets = {2.0, 0.020};
  request.rate = 5;
  const auto plan = PlanLayouts(request);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->layouts[0].parallel.tp, 8);  // the only one that is fast enough a token
  EXPECT_TRUE(plan->layouts[0].meets);
  EXPECT_LE(plan->layouts[0].at_limit.tpot_s, 0.020 * 1.001);
  EXPECT_FALSE(plan->layouts.back().meets);
  const std::string text = DescribeLayouts(request, *plan);
  EXPECT_THAT(text, HasSubstr("best: --tp 8"));
  EXPECT_THAT(LayoutsJson(request, *plan), HasSubstr("\"headroom_percent\""));
}

TEST(Predict, MoreLoadIsNeverFaster) {
  LayoutRequest request = Request(spec::Llama3_8B(), "H100", 1, 1);
  const auto plan = PlanLayouts(request);
  ASSERT_TRUE(plan.ok());
  const ReplicaModel& replica = plan->layouts[0].model;
  const double most = MaxRate(replica, request.lengths, {});
  ASSERT_GT(most, 1);
  double ttft = 0;
  double tpot = 0;
  for (int i = 1; i <= 10; ++i) {
    const Prediction at = Predict(replica, request.lengths, most * i / 10);
    EXPECT_TRUE(at.stable);
    EXPECT_GE(at.ttft_s, ttft);
    EXPECT_GE(at.tpot_s, tpot);
    ttft = at.ttft_s;
    tpot = at.tpot_s;
  }
  EXPECT_FALSE(Predict(replica, request.lengths, most * 1.05).stable);
  EXPECT_GT(PredictOffline(replica, request.lengths).tokens_per_s,
            0.9 * most * request.lengths.output);
}

}  // namespace
}  // namespace inferd::plan
