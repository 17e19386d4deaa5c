// SPDX-License-Identifier: Apache-2.0
// Models whose checkpoint rounds activations to 8 bits, on a device that computes the scheme.
#include "unit/model/harness.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

namespace inferd::model {
namespace {

// A GPU where there is one: tests/gpu/check.sh.
std::string TestDevice() {
  const char* const device = std::getenv("INFERD_TEST_DEVICE");
  return device != nullptr ? device : "cuda-emu";
}

// The activations' scheme is the checkpoint's: the same files without it keep floats. Rows are
// quantised whole, so that a group of ranks and one rank have the same bits, and chunks too.
TEST(W8A8ModelTest, ActivationsAreRoundedPerTokenOnTheDevice) {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < 40; ++i) {
    ids.push_back(3 + i * 37 % 280);
  }
  for (const auto& [folder, floats, most] :
       {std::tuple("quantised/compressed-w8a8", "quantised/compressed-int8", 0.05),
        std::tuple("quantised/compressed-fp8-dynamic", "quantised/fp8-channel", 0.12)}) {
    ShardSetOptions one;
    one.device = TestDevice();
    one.kv_dtype = spec::KvDtype::kF32;  // one attention kernel for any chunk
    ShardSetOptions two = one;
    two.parallel.tp = 2;
    std::vector<std::vector<float>> logits;
    for (const auto& [path, options, chunk] : {std::tuple(folder, one, 20),
                                               std::tuple(floats, one, 20),
                                               std::tuple(folder, two, 20),
                                               std::tuple(folder, one, 1)}) {
      auto set = ShardSet::Make(DataPath(path), options);
      ASSERT_TRUE(set.ok()) << set.error().message();
      auto run = (*set)->Run({ids}, InChunks({ids}, chunk));
      ASSERT_TRUE(run.ok()) << run.error().message();
      logits.push_back((*run)[0]);
    }
    double size = 0, error = 0;
    for (std::size_t i = 0; i < logits[0].size(); ++i) {
      const double difference = static_cast<double>(logits[0][i]) - logits[1][i];
      size += static_cast<double>(logits[1][i]) * logits[1][i];
      error += difference * difference;
    }
    // int8 rounds by up to 1/254 of a row's largest value, E4M3 by up to 1/16 of each value.
    EXPECT_LT(std::sqrt(error / size), most) << folder;
    EXPECT_GT(std::sqrt(error / size), 1e-4) << folder;
    EXPECT_EQ(logits[2], logits[0]) << folder << " by two ranks";
    EXPECT_EQ(logits[3], logits[0]) << folder << " token by token";
  }
}

}  // namespace
}  // namespace inferd::model
