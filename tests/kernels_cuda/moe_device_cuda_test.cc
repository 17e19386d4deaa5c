// SPDX-License-Identifier: Apache-2.0
// ops' CUDA device with routed experts: few rows go by the masked layout, many by the contiguous
// one, and a row's bits are the same.
#include "device_fixture.h"
#include "kernels/kernel_fixture.h"
#include "ops/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace inferd::ops {
namespace {

constexpr std::int64_t kHidden = 40, kFfn = 24, kExperts = 7, kTopK = 3, kFirst = 2;
constexpr std::int64_t kMostRows = 90;  // 270 pairs: too many for the masked layout

class MoeDevice {
 public:
  MoeDevice() : device_(*MakeDevice(kernels::cuda::kTestDevice, 1, {})) {
    kernels::TestRandom random(11);
    for (std::int64_t e = 0; e < 3 * kExperts; ++e) {
      const bool down = e % 3 == 2;
      const std::int64_t n = down ? kHidden : kFfn;
      const std::int64_t k = down ? kFfn : kHidden;
      const auto rows = kernels::RandomRows(DType::kBF16, n, k, random);
      matrices_.push_back(
          *device_->Pack(DType::kBF16, rows, n, k, static_cast<std::size_t>(2 * k)));
      lists_[static_cast<std::size_t>(e % 3)].push_back(matrices_.back().get());
    }
    const auto count = static_cast<std::size_t>(kMostRows);
    const std::vector<float> x = kernels::cuda::RandomFloats(count * kHidden, 12);
    const std::vector<float> weight = kernels::cuda::RandomFloats(count * kTopK, 13);
    std::vector<std::int32_t> expert;
    for (std::size_t pair = 0; pair < count * kTopK; ++pair) {
      expert.push_back(static_cast<std::int32_t>(random.Next() % 12) - 1);
    }
    x_ = Upload(x.data(), x.size() * 4);
    weight_ = Upload(weight.data(), weight.size() * 4);
    expert_ = Upload(expert.data(), expert.size() * 4);
    y_ = *device_->Allocate(x.size() * 4, "test");
    EXPECT_TRUE(device_->PrepareMoe(Task(kMostRows)).ok());
  }

  std::vector<float> Run(std::int64_t rows) {
    device_->Moe(Task(rows));
    std::vector<float> y(static_cast<std::size_t>(rows * kHidden));
    device_->Copy(y.data(), y_.data(), y.size() * 4);
    EXPECT_TRUE(device_->Wait().ok());
    return y;
  }

 private:
  Memory Upload(const void* from, std::size_t bytes) {
    Memory memory = *device_->Allocate(bytes, "test");
    device_->Copy(memory.data(), from, bytes);
    EXPECT_TRUE(device_->Wait().ok());
    return memory;
  }
  MoeTask Task(std::int64_t rows) {
    MoeTask task;
    task.gate = lists_[0];
    task.up = lists_[1];
    task.down = lists_[2];
    task.x = x_.floats();
    task.rows = rows;
    task.top_k = kTopK;
    task.first_expert = kFirst;
    task.expert = reinterpret_cast<const std::int32_t*>(expert_.data());
    task.weight = weight_.floats();
    task.y = y_.floats();
    return task;
  }

  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<PackedMatrix>> matrices_;
  std::vector<const PackedMatrix*> lists_[3];
  Memory x_, weight_, expert_, y_;
};

TEST(MoeDeviceCuda, BothLayoutsGiveTheSameBits) {
  MoeDevice device;
  const auto all = device.Run(kMostRows);
  EXPECT_GT(*std::max_element(all.begin(), all.end()), 0);
  for (const std::int64_t rows : {1, 2, 9, 40, 85}) {
    EXPECT_EQ(device.Run(rows), std::vector<float>(all.begin(), all.begin() + rows * kHidden))
        << rows;
  }
}

}  // namespace
}  // namespace inferd::ops
