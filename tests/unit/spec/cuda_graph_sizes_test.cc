// SPDX-License-Identifier: Apache-2.0
#include "spec/cuda_graph_sizes.h"

#include <gtest/gtest.h>

namespace inferd::spec {
namespace {

using Sizes = std::vector<std::int32_t>;

TEST(CudaGraphSizes, ByDefaultCoverAllSequences) {
  EXPECT_EQ(CudaGraphSizes({}, 1, 512), (Sizes{1}));
  EXPECT_EQ(CudaGraphSizes({}, 3, 512), (Sizes{1, 2, 4}));
  EXPECT_EQ(CudaGraphSizes({}, 20, 512), (Sizes{1, 2, 4, 8, 16, 24}));
  const Sizes many = CudaGraphSizes({}, 1024, 8192);
  EXPECT_EQ(many.back(), 512);
  EXPECT_EQ(many[many.size() - 2], 496);
  EXPECT_EQ(many.size(), 3U + 32 + 16);
}

TEST(CudaGraphSizes, NeverPassTheLargestStep) {
  EXPECT_EQ(CudaGraphSizes({}, 64, 6), (Sizes{1, 2, 4, 6}));
  EXPECT_EQ(CudaGraphSizes(std::vector<std::int64_t>{8, 16}, 64, 10), (Sizes{8, 10}));
}

TEST(CudaGraphSizes, OneNumberIsTheLastOfTheUsualAndSeveralAreTaken) {
  EXPECT_EQ(CudaGraphSizes(std::vector<std::int64_t>{18}, 64, 512), (Sizes{1, 2, 4, 8, 16, 18}));
  EXPECT_EQ(CudaGraphSizes(std::vector<std::int64_t>{32, 1, 1}, 64, 512), (Sizes{1, 32}));
}

}  // namespace
}  // namespace inferd::spec
