// SPDX-License-Identifier: Apache-2.0
// The ways in which the ranks of a tp group exchange, on the emulated device.
#include "kernels/simt/nccl.h"
#include "unit/model/rank_set.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace inferd::model {
namespace {

struct ExchangeCase {
  std::string model;
  int tp = 2;
};

class ExchangeTest : public testing::TestWithParam<ExchangeCase> {};

// One launch for exchange, residual and norm, an exchange of the library, or one through the host:
// the same bits; and a group that has replayed graphs does so again in its next generation. Of a
// short step the devices' memory carries all but the tokens.
TEST_P(ExchangeTest, AllWaysGiveTheSameBits) {
  const std::vector<std::vector<std::int32_t>> prompts = {{5, 6, 7, 8, 9}, {40, 41, 42}};
  std::vector<spec::SamplingParams> sampling(prompts.size());
  for (spec::SamplingParams& params : sampling) {
    params.logprobs = 2;
  }
  RankSetOptions options;
  options.parallel.tp = GetParam().tp;
  options.device = "cuda-emu";
  options.cuda_graph_sizes = {2};
  const auto samples_with = [&](Exchange exchange) {
    options.exchange = exchange;
    auto set = RankSet::Make(DataPath(GetParam().model), options);
    EXPECT_TRUE(set.ok()) << set.error().message();
    std::vector<std::pair<std::int32_t, float>> samples;
    for (const std::uint64_t generation : {1, 2}) {
      const std::uint64_t replayed = (*set)->rank(0).graph_counts().replayed;
      Generation steps;
      steps.generation = generation;
      const auto plans = PlanGeneration(prompts, sampling, steps);
      const std::uint64_t calls = simt::CountNcclCalls();
      auto results = (*set)->Run(plans);
      if (exchange == Exchange::kPeers) {
        EXPECT_EQ(simt::CountNcclCalls() - calls,
                  plans.size() * static_cast<std::size_t>(options.parallel.tp));
      }
      EXPECT_TRUE(results.ok()) << results.error().message();
      for (const auto& [key, result] : *results) {
        for (const spec::SampledToken& sampled : result.sampled) {
          samples.emplace_back(sampled.token, sampled.logprob);
        }
      }
      EXPECT_EQ((*set)->rank(0).graph_counts().replayed > replayed, exchange != Exchange::kHost);
      if (generation == 1) {
        const Result<> joined = (*set)->Join(2);
        EXPECT_TRUE(joined.ok()) << joined.error().message();
      }
    }
    return samples;
  };
  const auto through_host = samples_with(Exchange::kHost);
  EXPECT_EQ(through_host.size(), 32U);
  EXPECT_EQ(samples_with(Exchange::kNccl), through_host);
  EXPECT_EQ(samples_with(Exchange::kPeers), through_host);
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    ExchangeTest,
    testing::Values(ExchangeCase{"llama", 2},
                    ExchangeCase{"mixtral", 3},
                    ExchangeCase{"gemma2", 2},
                    ExchangeCase{"quantised/compressed-w8a8", 2},
                    ExchangeCase{"quantised/compressed-fp8-dynamic", 2}),
    [](const testing::TestParamInfo<ExchangeCase>& exchange) {
      std::string name = exchange.param.model;
      std::replace_if(name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
      return fmt::format("{}_tp{}", name, exchange.param.tp);
    });

}  // namespace
}  // namespace inferd::model
