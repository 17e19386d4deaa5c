// SPDX-License-Identifier: Apache-2.0
// Weights on their way to ops' CUDA device: through two pinned buffers in turn.
#include "device_fixture.h"
#include "ops/device.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace inferd::ops {
namespace {

// More than the two buffers of 8 MiB hold: both are filled again.
TEST(UploadCuda, MoreThanTheBuffersHoldArrivesWhole) {
  constexpr std::int64_t kRows = 5000, kColumns = 1024;
  auto device = MakeDevice(kernels::cuda::kTestDevice, 1, {});
  ASSERT_TRUE(device.ok()) << device.error().message();
  std::vector<float> rows(kRows * kColumns);
  std::iota(rows.begin(), rows.end(), 0.0F);
  auto table = (*device)->MakeTable(DType::kF32, std::as_bytes(std::span(rows)), kRows, kColumns);
  ASSERT_TRUE(table.ok()) << table.error().message();
  std::vector<float> back(rows.size());
  (*device)->Copy(back.data(), table->rows, back.size() * sizeof(float));
  ASSERT_TRUE((*device)->Wait().ok());
  EXPECT_TRUE(back == rows);
}

}  // namespace
}  // namespace inferd::ops
